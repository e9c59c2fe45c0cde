# laguna-xs-2.1.vllm/1xh200-bf16 on inventory synthetic (synthetic)
# deployment sha256:2065d595365f2b5f57248290ab0df8eaaa605ed466ad8c456ec97d52c1c0c984
# checkpoint poolside/Laguna-XS-2.1@e9df9a59996d790b94b70f3fef343fe1d9e34bdf lock NOT LOCKED

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
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /models/Laguna-XS-2.1 \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 1 \
  --tool-call-parser poolside_v1 \
  --reasoning-parser poolside_v1 \
  --served-model-name laguna \
  --default-chat-template-kwargs '{"enable_thinking":false}' \
  --host 0.0.0.0 \
  --port 8000 \
  --trust-remote-code \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details

# ready when http://192.0.2.11:8000 generates as laguna
