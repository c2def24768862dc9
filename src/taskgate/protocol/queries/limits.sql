-- Limits of groups, and what runs in each; of a limit of each (name *): the most that one of them runs.
WITH running AS (
    SELECT g.scope, g.name, count(*) AS n FROM tasks t
    CROSS JOIN LATERAL (VALUES ('type', t.task_type), ('model', t.model), ('upstream', t.upstream), ('tenant', t.tenant)) AS g (scope, name)
    WHERE t.status = 'running' AND t.request IS NOT NULL AND g.name <> ''
    GROUP BY g.scope, g.name
)
SELECT l.scope, l.name, l.max_concurrent, coalesce(max(r.n), 0) AS running, l.requests_per_minute,
       coalesce(l.requests_burst, greatest(1, l.requests_per_minute / 60)) AS requests_burst,
       l.tokens_per_minute, coalesce(l.tokens_burst, greatest(1, l.tokens_per_minute)) AS tokens_burst, l.tokens_default,
       bucket_level(b.bucket, 'requests', l.requests_per_minute / 60,
                    coalesce(l.requests_burst, greatest(1, l.requests_per_minute / 60)), clock_timestamp()) AS requests_left,
       bucket_level(b.bucket, 'tokens', l.tokens_per_minute / 60,
                    coalesce(l.tokens_burst, greatest(1, l.tokens_per_minute)), clock_timestamp()) AS tokens_left,
       l.updated_at
FROM limits l
LEFT JOIN LATERAL (SELECT c.buckets -> (l.scope || '/' || l.name) AS bucket FROM claim_ledger c ORDER BY c.id DESC LIMIT 1) AS b ON true
LEFT JOIN running r ON r.scope = l.scope
    AND (r.name = l.name OR (l.name = '*' AND NOT EXISTS (SELECT FROM limits o WHERE o.scope = r.scope AND o.name = r.name)))
GROUP BY l.scope, l.name, b.bucket
ORDER BY array_position(ARRAY['type', 'model', 'upstream', 'tenant'], l.scope), l.name = '*' DESC, l.name
