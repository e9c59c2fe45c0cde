# laguna-m.1.sglang/h200-bf16-pd-nixl on inventory synthetic (synthetic)
# deployment sha256:cd77e754a443d817497af7c669e13f9d57ca3baba3c103a192fb598ab1c30fa2
# checkpoint poolside/Laguna-M.1@NOT PINNED lock NOT LOCKED
# memory of prefill: per GPU 122.81 GiB for the engine, graphs and workspace outside of it - 52.82 weights = 70.00 for KV; largest context 262,144 tokens, asked for 262,144
# memory of decode: per GPU 122.81 GiB for the engine, graphs and workspace outside of it - 52.82 weights = 70.00 for KV; largest context 262,144 tokens, asked for 262,144
# KV of a 262,144-token prompt: 75.2 GB, 0.209 s from prefill to decode at 360 GB/s

# prefill on node node-1
docker run \
  --detach \
  --name synthetic-prefill \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env SGLANG_HOST_IP=192.0.2.11 \
  --env UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,lo \
  --env SGLANG_DISAGGREGATION_WAITING_TIMEOUT=600 \
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
  --disaggregation-transfer-backend nixl \
  --disaggregation-ib-device mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7 \
  --disaggregation-bootstrap-port 8998 \
  --host 0.0.0.0 \
  --port 30000

# decode on node node-2
docker run \
  --detach \
  --name synthetic-decode \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env SGLANG_HOST_IP=192.0.2.12 \
  --env UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,lo \
  --env SGLANG_DISAGGREGATION_WAITING_TIMEOUT=600 \
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
  --disaggregation-transfer-backend nixl \
  --disaggregation-ib-device mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7 \
  --host 0.0.0.0 \
  --port 30001

# router on node node-1
docker run \
  --detach \
  --name synthetic-router \
  --ipc=host \
  --ulimit memlock=-1:-1 \
  --ulimit stack=67108864:67108864 \
  --network=host \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 python3 -m sglang_router.launch_router \
  --pd-disaggregation \
  --prefill http://192.0.2.11:30000 8998 \
  --decode http://192.0.2.12:30001 \
  --policy round_robin \
  --host 0.0.0.0 \
  --port 8000

# ready when http://192.0.2.11:8000 generates as poolside/Laguna-M.1
