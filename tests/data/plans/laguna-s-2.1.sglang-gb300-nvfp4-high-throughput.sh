# laguna-s-2.1.sglang/gb300-nvfp4-high-throughput on inventory synthetic (synthetic)
# deployment sha256:80aa3deb4597751d0a30bdd305c7f951ba3ad2ecdefb66897eb97d7bc2f70c45
# checkpoint poolside/Laguna-S-2.1-NVFP4@07614121b31898586430f189d27a25a0be310843 lock NOT LOCKED

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
