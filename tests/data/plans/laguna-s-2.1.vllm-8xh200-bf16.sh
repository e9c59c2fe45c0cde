# laguna-s-2.1.vllm/8xh200-bf16 on inventory synthetic (synthetic)
# deployment sha256:9d7cfb5ecc25429fa996e260f66f7cdba110e5e001241a7b5e4a7cd762c5bead
# checkpoint poolside/Laguna-S-2.1@NOT PINNED lock NOT LOCKED
# memory of server: per GPU 128.40 GiB for the engine - 27.50 weights - 3.61 graphs and workspace = 97.29 for KV; largest context 262,144 tokens, asked for 262,144

# server on node node-1
docker run \
  --detach \
  --name synthetic-server \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env VLLM_NO_USAGE_STATS=1 \
  --env VLLM_CACHE_ROOT=/cache/vllm \
  --env DG_JIT_CACHE_DIR=/cache/deep_gemm \
  --env TRITON_CACHE_DIR=/cache/triton \
  --env TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
  --env FLASHINFER_WORKSPACE_BASE=/cache/flashinfer \
  --env TILELANG_CACHE_DIR=/cache/tilelang \
  --env CUDA_CACHE_PATH=/cache/cuda \
  --env TVM_FFI_CACHE_DIR=/cache/tvm-ffi \
  --ipc=host \
  --publish 8000:8000 \
  --volume /models:/models:ro \
  --volume /var/cache/slipway/vllm-0.25.1-h200-ffcc28a47840:/cache \
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /models/Laguna-S-2.1 \
  --tensor-parallel-size 8 \
  --pipeline-parallel-size 1 \
  --max-model-len 262144 \
  --tool-call-parser poolside_v1 \
  --reasoning-parser poolside_v1 \
  --served-model-name laguna \
  --default-chat-template-kwargs '{"enable_thinking":true}' \
  --host 0.0.0.0 \
  --port 8000 \
  --trust-remote-code \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details

# ready when http://192.0.2.11:8000 generates as laguna
