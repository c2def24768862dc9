-- Sessions that hold back vacuum for longer than $1 seconds.
SELECT pid, usename::text AS usename, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::double precision AS open_seconds
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND xact_start < clock_timestamp() - $1::double precision * interval '1 second'
ORDER BY xact_start
