# laguna-m.1.sglang/h200-bf16 on inventory synthetic (synthetic)
# deployment sha256:1db4dad01a61aa5e25da84266ed04126488066e5ecfc740400c101f85d651389
# checkpoint poolside/Laguna-M.1@NOT PINNED lock NOT LOCKED
# memory of server: per GPU 122.81 GiB for the engine, graphs and workspace outside of it - 52.82 weights = 70.00 for KV; largest context 262,144 tokens, asked for 262,144

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
  --volume /var/cache/slipway/sglang-0.5.18-h200-acdd5db503f2:/cache \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 sglang serve \
  --model-path /models/Laguna-M.1 \
  --served-model-name poolside/Laguna-M.1 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 8 \
  --trust-remote-code \
  --enable-metrics \
  --enable-cache-report \
  --host 0.0.0.0 \
  --port 30000

# ready when http://192.0.2.11:30000 generates as poolside/Laguna-M.1
