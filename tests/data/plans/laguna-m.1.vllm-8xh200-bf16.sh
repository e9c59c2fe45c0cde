# laguna-m.1.vllm/8xh200-bf16 on inventory synthetic (synthetic)
# deployment sha256:1d597479667759e2d90cb9d141dd8e2f02d3c45e6ac2d6967e734712054137a7
# checkpoint poolside/Laguna-M.1@NOT PINNED lock NOT LOCKED

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
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /models/Laguna-M.1 \
  --tensor-parallel-size 8 \
  --pipeline-parallel-size 1 \
  --tool-call-parser poolside_v1 \
  --reasoning-parser poolside_v1 \
  --served-model-name laguna \
  --default-chat-template-kwargs '{"enable_thinking":true}' \
  --host 0.0.0.0 \
  --port 8000 \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details

# ready when http://192.0.2.11:8000 generates as laguna
