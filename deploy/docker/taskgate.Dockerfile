# The API, the migrate step, the Python worker and the fake provider: one image, the command chooses.
# Build from the repository's root: docker build -f deploy/docker/taskgate.Dockerfile -t taskgate .
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/build.txt requirements/image.txt requirements/
# pip stays outside: nothing in the environment can install anything
RUN python -m venv --without-pip /opt/taskgate \
    && python -m pip --python /opt/taskgate/bin/python install --quiet --require-hashes -r requirements/image.txt \
    && python -m venv --without-pip /build/tools \
    && python -m pip --python /build/tools/bin/python install --quiet --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m pip --python /build/tools/bin/python wheel --quiet --no-deps --no-build-isolation -w /build/wheel . \
    && python -m pip --python /opt/taskgate/bin/python install --quiet --no-deps --no-index /build/wheel/*.whl

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/taskgate /opt/taskgate
# HOME, LOGNAME: the user has no entry in /etc/passwd. /app: where `taskgate worker --app module:handlers` looks.
ENV PATH=/opt/taskgate/bin:$PATH HOME=/tmp LOGNAME=taskgate PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    TASKGATE_HOST=0.0.0.0 TASKGATE_PORT=8000
WORKDIR /app
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["taskgate"]
CMD ["api"]
