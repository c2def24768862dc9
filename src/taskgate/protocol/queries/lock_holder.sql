-- Who holds the claim lock, and for how long its transaction has been open.
SELECT a.pid, a.usename::text AS usename, a.application_name, a.state, a.client_addr::text AS client_addr, left(a.query, 200) AS query,
       extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS open_seconds
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.objsubid = 1 AND l.classid::bigint = (lock_key() >> 32) & 4294967295 AND l.objid::bigint = lock_key() & 4294967295
