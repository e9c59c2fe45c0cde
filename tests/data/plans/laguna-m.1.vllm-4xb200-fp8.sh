# laguna-m.1.vllm/4xb200-fp8 on inventory synthetic (synthetic)
# deployment sha256:62ae49c208dd10bc6abe0f1ba797e3b30345b650fc443f20b6546944e2652b98
# checkpoint poolside/Laguna-M.1-FP8@NOT PINNED lock NOT LOCKED

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
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /models/Laguna-M.1-FP8 \
  --tensor-parallel-size 4 \
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
