-- The upstream for a task that names none: of those for its type, the one whose models name this model exactly, else
-- the one with the longest beginning that fits; '' when none does. `*` also takes tasks without a model.
CREATE OR REPLACE FUNCTION pick_upstream(p_type text, p_model text) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((
        SELECT u.name FROM upstreams u CROSS JOIN LATERAL unnest(u.models) AS m (pattern)
        WHERE u.enabled
          AND CASE p_type WHEN 'llm' THEN u.api = 'openai' WHEN 'veo' THEN u.api <> 'openai' ELSE true END
          AND (m.pattern = coalesce(p_model, '')
               OR (right(m.pattern, 1) = '*' AND starts_with(coalesce(p_model, ''), left(m.pattern, -1))))
        ORDER BY m.pattern = coalesce(p_model, '') DESC, length(m.pattern) DESC, u.name
        LIMIT 1
    ), '')
$$;
