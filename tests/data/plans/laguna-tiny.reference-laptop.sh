# laguna-tiny.reference/laptop on inventory synthetic (synthetic)
# deployment sha256:2b64b565d877ed4c9f4818b522ad3e40905fa792d49ef3545e432a320dfda404
# checkpoint slipway/Laguna-Tiny@cf71f95f7954e6761b66b0ef0d9fd423be64360b lock NOT LOCKED

# server on node node-1
python -m slipway.reference.engine \
  --model /models/Laguna-Tiny \
  --served-model-name laguna-tiny \
  --max-model-len 4096 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --default-chat-template-kwargs '{"enable_thinking":false}' \
  --host 127.0.0.1 \
  --port 8421 \
  --dress vllm \
  --enable-prompt-tokens-details

# ready when http://192.0.2.11:8421 generates as laguna-tiny
