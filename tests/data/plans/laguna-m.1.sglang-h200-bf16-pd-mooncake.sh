# laguna-m.1.sglang/h200-bf16-pd-mooncake on inventory example-2x8h200-infiniband
# deployment sha256:0bc7857862794dfd3a3b61ca620380afee659e2e0853fc1be006e5a68aa2b987
# checkpoint poolside/Laguna-M.1@NOT PINNED lock NOT LOCKED
# memory of prefill: per GPU 122.81 GiB for the engine, graphs and workspace outside of it - 52.82 weights = 70.00 for KV; largest context 262,144 tokens, asked for 262,144
# memory of decode: per GPU 122.81 GiB for the engine, graphs and workspace outside of it - 52.82 weights = 70.00 for KV; largest context 262,144 tokens, asked for 262,144
# KV of a 262,144-token prompt: 75.2 GB, 0.209 s from prefill to decode at 360 GB/s

# prefill on node prefill-1
docker run \
  --detach \
  --name example-2x8h200-infiniband-prefill \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env SGLANG_HOST_IP=192.0.2.41 \
  --env MC_FORCE_HCA=1 \
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
  --ulimit memlock=-1:-1 \
  --ulimit stack=67108864:67108864 \
  --cap-add IPC_LOCK \
  --device /dev/infiniband \
  --network=host \
  --volume /models:/models:ro \
  --volume /var/cache/slipway/sglang-0.5.18-h200-d415573f9732:/cache \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 sglang serve \
  --model-path /models/Laguna-M.1 \
  --served-model-name poolside/Laguna-M.1 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 8 \
  --trust-remote-code \
  --enable-metrics \
  --enable-cache-report \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend mooncake \
  --disaggregation-ib-device mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9 \
  --disaggregation-bootstrap-port 8998 \
  --host 0.0.0.0 \
  --port 30000

# decode on node decode-1
docker run \
  --detach \
  --name example-2x8h200-infiniband-decode \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env SGLANG_HOST_IP=192.0.2.42 \
  --env MC_FORCE_HCA=1 \
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
  --ulimit memlock=-1:-1 \
  --ulimit stack=67108864:67108864 \
  --cap-add IPC_LOCK \
  --device /dev/infiniband \
  --network=host \
  --volume /models:/models:ro \
  --volume /var/cache/slipway/sglang-0.5.18-h200-faff0d3ba873:/cache \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 sglang serve \
  --model-path /models/Laguna-M.1 \
  --served-model-name poolside/Laguna-M.1 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 8 \
  --trust-remote-code \
  --enable-metrics \
  --enable-cache-report \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend mooncake \
  --disaggregation-ib-device ibp12s0,ibp18s0,ibp64s0,ibp75s0,ibp141s0,ibp148s0,ibp186s0,ibp206s0 \
  --host 0.0.0.0 \
  --port 30001

# router on node prefill-1
docker run \
  --detach \
  --name example-2x8h200-infiniband-router \
  --ipc=host \
  --ulimit memlock=-1:-1 \
  --ulimit stack=67108864:67108864 \
  --network=host \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 python3 -m sglang_router.launch_router \
  --pd-disaggregation \
  --prefill http://192.0.2.41:30000 8998 \
  --decode http://192.0.2.42:30001 \
  --policy round_robin \
  --host 0.0.0.0 \
  --port 8000

# ready when http://192.0.2.41:8000 generates as poolside/Laguna-M.1
