# laguna-s-2.1.vllm/1xh200-int4 on inventory synthetic (synthetic)
# deployment sha256:759e9131e86ed86c7c4e23e4174a1c471d7dd1b0f42e2a1e230f90baff4e8592
# checkpoint poolside/Laguna-S-2.1-INT4@4bbfc285f2f8b3b6b526274c133b7b17aae6c8cb lock NOT LOCKED
# memory of server: per GPU 128.40 GiB for the engine - 67.03 weights - 3.61 graphs and workspace = 57.76 for KV; largest context 262,144 tokens, asked for 262,144

# server on node node-1
docker run \
  --detach \
  --name synthetic-server \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env VLLM_NO_USAGE_STATS=1 \
  --ipc=host \
  --publish 8000:8000 \
  --volume /models:/models:ro \
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /models/Laguna-S-2.1-INT4 \
  --tensor-parallel-size 1 \
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
