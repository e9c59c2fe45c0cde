# laguna-s-2.1.sglang/gb300-nvfp4-high-throughput on inventory synthetic (synthetic)
# deployment sha256:1722ae3220cfc68951de3f77094ec70a1f8036a20986df094854678bf10c340c
# checkpoint poolside/Laguna-S-2.1-NVFP4@07614121b31898586430f189d27a25a0be310843 lock NOT LOCKED
# memory of server: per GPU 235.45 GiB for the engine, graphs and workspace outside of it - 16.86 weights = 218.59 for KV; largest context 262,144 tokens, asked for 262,144

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
  --volume /var/cache/slipway/sglang-0.5.18-gb300-17778b7366d5:/cache \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 sglang serve \
  --model-path /models/Laguna-S-2.1-NVFP4 \
  --served-model-name poolside/Laguna-S-2.1-NVFP4 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 4 \
  --trust-remote-code \
  --enable-metrics \
  --enable-cache-report \
  --host 0.0.0.0 \
  --port 30000

# ready when http://192.0.2.11:30000 generates as poolside/Laguna-S-2.1-NVFP4
