"""The yardstick: a typed FastAPI endpoint that checks its input and does nothing with it."""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Request(BaseModel):
    prompt: str
    images: list[str] = []
    system: str | None = None
    model: str | None = None


class Accepted(BaseModel):
    task_id: str
    status: str


@app.post("/tasks", status_code=202)
async def submit(request: Request) -> Accepted:
    return Accepted(task_id="0198c0de-0000-7000-8000-000000000000", status="pending")


@app.get("/tasks/{task_id}")
async def get(task_id: str) -> Accepted:
    return Accepted(task_id=task_id, status="completed")
