# The Go worker: one static program and the certificates of public authorities, nothing else.
# Build from the repository's root: docker build -f deploy/docker/worker.Dockerfile -t taskgate-worker .
ARG GO_IMAGE=golang:1.26

FROM ${GO_IMAGE} AS build
ENV CGO_ENABLED=0 GOTOOLCHAIN=local
WORKDIR /build
COPY go/go.mod go/go.sum ./
RUN go mod download
COPY go ./
RUN go build -trimpath -buildvcs=false -ldflags="-s -w" -o /taskgate-worker ./cmd/taskgate-worker

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /taskgate-worker /taskgate-worker
USER 10001:10001
ENTRYPOINT ["/taskgate-worker"]
