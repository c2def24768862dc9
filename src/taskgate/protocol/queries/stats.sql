-- What the queue looks like now, of one tenant ($1) or all (NULL). Finished tasks are not counted: that would
-- read them all.
SELECT s.max_concurrent AS limit,
       (SELECT count(*) FROM tasks t WHERE t.status = 'running' AND t.request IS NOT NULL
           AND ($1::text IS NULL OR t.tenant = $1::text)) AS running,
       (SELECT count(*) FROM tasks t WHERE t.status = 'pending' AND t.task_type IS NOT NULL AND t.request IS NOT NULL
           AND ($1::text IS NULL OR t.tenant = $1::text)) AS pending,
       (SELECT count(*) FROM tasks t WHERE t.status = 'pending' AND t.run_at > clock_timestamp()
           AND t.task_type IS NOT NULL AND t.request IS NOT NULL
           AND ($1::text IS NULL OR t.tenant = $1::text)) AS delayed,
       (SELECT extract(epoch FROM clock_timestamp() - min(greatest(t.created_at, t.run_at))) FROM tasks t
           WHERE t.status = 'pending' AND t.task_type IS NOT NULL AND t.request IS NOT NULL
           AND (t.run_at IS NULL OR t.run_at <= clock_timestamp())
           AND ($1::text IS NULL OR t.tenant = $1::text))::double precision AS oldest_pending_seconds,
       (SELECT count(*) FROM workers w WHERE w.seen_at > clock_timestamp() - interval '2 minutes') AS workers,
       (SELECT coalesce(sum(w.slots), 0) FROM workers w WHERE w.seen_at > clock_timestamp() - interval '2 minutes') AS slots
FROM settings s
