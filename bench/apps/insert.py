"""What one writes first: a typed FastAPI endpoint that makes one INSERT a request, on asyncpg's pool.

The table `submitted` is taskgate's table without its triggers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uuid_utils
from fastapi import FastAPI

from bench.apps.nothing import Accepted, Request

INSERT = "INSERT INTO submitted (task_id, status, task_type, request) VALUES ($1, 'pending', 'llm', $2)"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=10, max_size=10) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/tasks", status_code=202)
async def submit(request: Request) -> Accepted:
    task_id = str(uuid_utils.uuid7())
    await app.state.pool.execute(INSERT, task_id, request.model_dump_json(exclude_unset=True))
    return Accepted(task_id=task_id, status="pending")
