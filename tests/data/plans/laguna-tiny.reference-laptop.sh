# laguna-tiny.reference/laptop on inventory synthetic (synthetic)
# deployment sha256:b094ff8be61b79a46050f7119b10a699ccf8adc9224c1b75be903b2c677c0129
# checkpoint slipway/Laguna-Tiny@0000000000000000000000000000000000000000 lock NOT LOCKED

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
