"""An OpenAI- and Gemini-shaped provider, as quick or as bad as it is told to be: for trials, tests and load.

`taskgate fake-provider`, `python -m taskgate.local.fake_provider`, or in a test:

    async with FakeProvider() as provider:
        provider.script("KEY", {"fault": "429", "retry_after": 1}, {"ok": "text"})
        ...  # call provider.url + "/v1" with a prompt that contains KEY

Routes: POST /v1/chat/completions, GET /v1/models; those of videos (see video.py), GET /video; GET /stats,
POST /stats/reset; GET /log, GET /log/{n}/body;
GET and PUT /faults; GET, PUT and DELETE /scripts.
"""

from taskgate.local.fake_provider.behaviour import BadBehaviour, Rule, from_text
from taskgate.local.fake_provider.server import FakeProvider, FakeProviderOptions, serve

__all__ = ["BadBehaviour", "FakeProvider", "FakeProviderOptions", "Rule", "from_text", "serve"]
