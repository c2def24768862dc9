-- Workers seen within the last day, those that were seen last first.
SELECT worker_id, language, version, host, pid, slots, busy, draining, types, started_at, seen_at,
       extract(epoch FROM clock_timestamp() - seen_at)::double precision AS silent_seconds
FROM workers ORDER BY seen_at DESC LIMIT 1000
