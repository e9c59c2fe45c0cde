# laguna-s-2.1.sglang/gb300-nvfp4-low-latency on inventory synthetic (synthetic)
# deployment sha256:49a7e8b77013b25e9a42fcb8ad24ab48dac1a8a8e3d6d65e23e523aeb2069652
# checkpoint poolside/Laguna-S-2.1-NVFP4@07614121b31898586430f189d27a25a0be310843 lock NOT LOCKED
# checkpoint poolside/Laguna-S-2.1-DFlash-NVFP4@723794750422b3efbf3a7b3af76dffb4ba035943 lock NOT LOCKED
# memory of server: per GPU 187.29 GiB for the engine, graphs and workspace outside of it - 17.46 weights = 169.83 for KV; largest context 262,144 tokens, asked for 262,144

# server on node node-1
docker run \
  --detach \
  --name synthetic-server \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env SGLANG_CACHE_DIR=/cache/sglang \
  --env SGLANG_DG_CACHE_DIR=/cache/deep_gemm \
  --env SGLANG_JIT_CACHE_DIR=/cache/sglang-jit \
  --env TRITON_CACHE_DIR=/cache/triton \
  --env TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
  --env FLASHINFER_WORKSPACE_BASE=/cache/flashinfer \
  --env TILELANG_CACHE_DIR=/cache/tilelang \
  --env CUDA_CACHE_PATH=/cache/cuda \
  --env TVM_FFI_CACHE_DIR=/cache/tvm-ffi \
  --ipc=host \
  --publish 30000:30000 \
  --volume /models:/models:ro \
  --volume /var/cache/slipway/sglang-0.5.18-gb300-6a27d9c2adce:/cache \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 sglang serve \
  --model-path /models/Laguna-S-2.1-NVFP4 \
  --served-model-name poolside/Laguna-S-2.1-NVFP4 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 4 \
  --mem-fraction-static 0.7 \
  --page-size 1 \
  --speculative-algorithm DFLASH \
  --speculative-draft-model-path /models/Laguna-S-2.1-DFlash-NVFP4 \
  --trust-remote-code \
  --attention-backend trtllm_mha \
  --enable-metrics \
  --enable-cache-report \
  --host 0.0.0.0 \
  --port 30000

# ready when http://192.0.2.11:30000 generates as poolside/Laguna-S-2.1-NVFP4
