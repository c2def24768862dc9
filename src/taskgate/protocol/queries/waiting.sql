-- What a pending task ($1) waits for, as far as this moment tells; no row if it is not pending.
-- due: when it may run, while that is to come · running, fleet_limit: of the whole fleet · workers: those that serve
-- its type, claim, and were seen in the last two minutes · full_groups: its groups of which nothing may start now, with
-- limit and running, and the seconds until a rate lets one through · cooldowns: of its groups, with seconds and reason.
WITH task AS MATERIALIZED (
    SELECT t.task_type, t.model, t.upstream, t.tenant, t.run_at FROM tasks t WHERE t.task_id = $1::text AND t.status = 'pending'
), own AS MATERIALIZED (
    SELECT g.scope, g.name,
           (SELECT count(*) FROM tasks t
            WHERE t.status = 'running' AND t.request IS NOT NULL
              AND CASE g.scope WHEN 'type' THEN t.task_type WHEN 'model' THEN t.model WHEN 'upstream' THEN t.upstream ELSE t.tenant END = g.name
           ) AS running
    FROM task
    CROSS JOIN LATERAL (VALUES ('type', task.task_type), ('model', task.model), ('upstream', task.upstream), ('tenant', task.tenant)) AS g (scope, name)
    WHERE g.name <> ''
), full_group AS (
    SELECT r.scope, r.name, l.max_concurrent AS "limit", own.running, greatest(r.wait, 0) AS seconds
    FROM group_rooms(
        (SELECT jsonb_object_agg(o.scope || '/' || o.name, o.running) FROM own o),
        coalesce((SELECT c.buckets FROM claim_ledger c ORDER BY c.id DESC LIMIT 1), '{}'), clock_timestamp(),
        (SELECT array_agg(o.scope ORDER BY o.scope, o.name) FROM own o), (SELECT array_agg(o.name ORDER BY o.scope, o.name) FROM own o)
    ) AS r
    JOIN own ON own.scope = r.scope AND own.name = r.name
    CROSS JOIN LATERAL (
        SELECT l.max_concurrent FROM limits l WHERE l.scope = r.scope AND l.name IN (r.name, '*') ORDER BY l.name = '*' LIMIT 1
    ) AS l
    WHERE r.room <= 0
), cooling AS (
    SELECT c.scope, c.name, extract(epoch FROM max(c.until) - clock_timestamp())::double precision AS seconds,
           (array_agg(c.reason ORDER BY c.until DESC))[1] AS reason
    FROM cooldowns c JOIN own ON own.scope = c.scope AND own.name = c.name
    WHERE c.until > clock_timestamp() GROUP BY c.scope, c.name
)
SELECT task.task_type, CASE WHEN task.run_at > clock_timestamp() THEN readable(task.run_at) END AS due,
       (SELECT count(*) FROM tasks t WHERE t.status = 'running' AND t.request IS NOT NULL) AS running, s.max_concurrent AS fleet_limit,
       (SELECT count(*) FROM workers w
        WHERE w.seen_at > clock_timestamp() - interval '2 minutes' AND NOT w.draining
          AND (w.types IS NULL OR task.task_type = ANY (w.types))) AS workers,
       (SELECT coalesce(jsonb_agg(to_jsonb(f) ORDER BY f.scope), '[]')::text FROM full_group f) AS full_groups,
       (SELECT coalesce(jsonb_agg(to_jsonb(c) ORDER BY c.scope), '[]')::text FROM cooling c) AS cooldowns
FROM task CROSS JOIN settings s
