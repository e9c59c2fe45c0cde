# laguna-m.1.sglang/gb200-fp8 on inventory synthetic (synthetic)
# deployment sha256:aacf8f8d70b9b6ad0ea0bb4ab51def6f0d2162f882c8aa3d00ad096560968695
# checkpoint poolside/Laguna-M.1-FP8@NOT PINNED lock NOT LOCKED
# memory of server: per GPU 161.53 GiB for the engine - 53.01 weights - 0.00 graphs and workspace = 108.52 for KV; largest context 262,144 tokens, asked for 262,144

# server on node node-1
docker run \
  --detach \
  --name synthetic-server \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --ipc=host \
  --publish 30000:30000 \
  --volume /models:/models:ro \
  lmsysorg/sglang:v0.5.18@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1 sglang serve \
  --model-path /models/Laguna-M.1-FP8 \
  --served-model-name poolside/Laguna-M.1-FP8 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 4 \
  --trust-remote-code \
  --enable-metrics \
  --enable-cache-report \
  --host 0.0.0.0 \
  --port 30000

# ready when http://192.0.2.11:30000 generates as poolside/Laguna-M.1-FP8
