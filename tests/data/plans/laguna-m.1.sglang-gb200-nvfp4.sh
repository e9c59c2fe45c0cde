# laguna-m.1.sglang/gb200-nvfp4 on inventory synthetic (synthetic)
# deployment sha256:27287102f9917887aebf15065d85d1e66f66e7d5361493ea7bed9c65d57af820
# checkpoint poolside/Laguna-M.1-NVFP4@NOT PINNED lock NOT LOCKED
# memory of server: per GPU 161.53 GiB for the engine - 33.14 weights - 0.00 graphs and workspace = 128.39 for KV; largest context 262,144 tokens, asked for 262,144

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
  --model-path /models/Laguna-M.1-NVFP4 \
  --served-model-name poolside/Laguna-M.1-NVFP4 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --tp-size 4 \
  --trust-remote-code \
  --enable-metrics \
  --enable-cache-report \
  --host 0.0.0.0 \
  --port 30000

# ready when http://192.0.2.11:30000 generates as poolside/Laguna-M.1-NVFP4
