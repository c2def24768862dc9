"""A handler of one's own: `taskgate worker --app examples.summarize:handlers`. summarize-go is the same in Go."""

from __future__ import annotations

from dataclasses import dataclass

from taskgate import Handlers, PermanentError, Snooze, Task

handlers = Handlers()


@dataclass
class Request:
    text: str
    words: int = 20


@dataclass
class Summary:
    summary: str
    dropped: int


@handlers.handler("summarize")
async def summarize(task: Task[Request]) -> Summary:
    """The first words of a text."""
    words = task.request.text.split()
    if not words:
        raise PermanentError("there is nothing to summarize", code="empty_text")
    if words[0] == "later" and task.checkpoint is None:  # what a busy provider would make us do
        await task.save_checkpoint({"seen": len(words)})
        raise Snooze("not yet", after=0.1)
    await task.report_progress(0.5)
    kept = words[: task.request.words]
    return Summary(" ".join(kept), len(words) - len(kept))
