# laguna-s-2.1.vllm/4x3090-int4-context-first on inventory synthetic (synthetic)
# deployment sha256:2e6e0b725d041fa83cd79a55ac0e092ece63426173d56729eda934444a985ff0
# checkpoint poolside/Laguna-S-2.1-INT4@4bbfc285f2f8b3b6b526274c133b7b17aae6c8cb lock NOT LOCKED
# memory of server: per GPU 21.68 GiB for the engine - 16.86 weights - 1.83 graphs and workspace = 2.98 for KV; largest context 262,144 tokens, asked for 262,144

# server on node node-1
docker run \
  --detach \
  --name synthetic-server \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env VLLM_NO_USAGE_STATS=1 \
  --env CUDA_VISIBLE_DEVICES=0,1,2,3 \
  --env VLLM_ENABLE_CUDA_COMPATIBILITY=0 \
  --env VLLM_USE_DEEP_GEMM=0 \
  --env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
  --env VLLM_CACHE_ROOT=/cache/vllm \
  --env DG_JIT_CACHE_DIR=/cache/deep_gemm \
  --env TRITON_CACHE_DIR=/cache/triton \
  --env TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
  --env FLASHINFER_WORKSPACE_BASE=/cache/flashinfer \
  --env TILELANG_CACHE_DIR=/cache/tilelang \
  --env CUDA_CACHE_PATH=/cache/cuda \
  --env TVM_FFI_CACHE_DIR=/cache/tvm-ffi \
  --ipc=host \
  --shm-size=17179869184 \
  --publish 8080:8000 \
  --volume /models:/root/.cache/huggingface:ro \
  --volume /var/cache/slipway/vllm-0.25.1-rtx-3090-798760efadb0:/cache \
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /root/.cache/huggingface/Laguna-S-2.1-INT4 \
  --tensor-parallel-size 4 \
  --pipeline-parallel-size 1 \
  --max-model-len 262144 \
  --tool-call-parser poolside_v1 \
  --reasoning-parser poolside_v1 \
  --served-model-name laguna \
  --default-chat-template-kwargs '{"enable_thinking":true}' \
  --host 0.0.0.0 \
  --port 8000 \
  --trust-remote-code \
  --max-num-seqs 8 \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details \
  --moe-backend marlin \
  --disable-custom-all-reduce

# ready when http://192.0.2.11:8080 generates as laguna
