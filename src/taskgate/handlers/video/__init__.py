"""The `veo` handler: a video from words and pictures, over three wires, paid once.

`route` chooses the wire and says what it cannot carry; `gemini`, `vertex` and `interactions` are the wires, pure
functions from a request to an HTTP call and from an answer to what it means; `handler` submits, follows and stores.
Plain HTTP: the current google-genai refuses video with an API key; tests hold every request against its own.
"""
