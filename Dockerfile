# Leaseway as a static binary in an image that holds nothing else.
#
#   docker build -t leaseway .
#   docker run -p 127.0.0.1:2379:2379 -v leaseway:/data leaseway      # one server with its own data
#
# The image listens on all addresses of its container; publish the port only where clients may be.
# docker-compose.yml and deploy/kubernetes/ run it as gateways on an Oxia cluster.

FROM rust:1.95-alpine AS build
# A C compiler, make and headers: to link, and for crates with parts in C.
RUN apk add --no-cache build-base
WORKDIR /src
COPY . .
# On Alpine the target is musl, which is linked statically. The check is for the day when it is not:
# the binary must start in an image without a loader.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin leaseway \
    && cp target/release/leaseway /leaseway \
    && ! readelf --program-headers /leaseway | grep -q INTERP
# Docker makes a volume with the owner of the directory that it covers.
RUN mkdir -m 0700 /empty

FROM scratch
COPY --from=build /leaseway /leaseway
COPY --from=build --chown=65532:65532 /empty /data
USER 65532:65532
VOLUME /data
EXPOSE 2379
STOPSIGNAL SIGTERM
# /readyz is false while a gateway can't reach Oxia; a container that is unhealthy is not restarted by
# this alone, and need not be.
HEALTHCHECK --interval=10s --timeout=10s --start-period=5m CMD ["/leaseway", "health"]
ENTRYPOINT ["/leaseway"]
# Flags, not variables: flags that are given replace all of these, and none is given twice.
CMD ["--data-dir=/data", "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://127.0.0.1:2379"]
