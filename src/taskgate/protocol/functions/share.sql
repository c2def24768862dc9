-- Shares p_free tasks out among flows of one level: between tenants as water fills, those that run least first, so that
-- in the end all run equally many; among equals, whoever was served longest ago; within a tenant flow by flow in turn.
-- p_runs: what the flow's tenant runs now; p_turns: how long ago the flow was served, in any unit.
-- Answers flows (their places in the arrays) with a quota above 0, in the order in which they are to be served.
CREATE OR REPLACE FUNCTION share(
    p_free integer, p_places integer[], p_tenants text[], p_runs integer[], p_turns double precision[],
    OUT places integer[], OUT quotas integer[]
)
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT SET enable_hashjoin = on AS $$
BEGIN
    IF cardinality(p_places) = 1 THEN
        places := p_places;
        quotas := ARRAY[p_free];
        RETURN;
    END IF;
    WITH flow AS MATERIALIZED (
        SELECT f.*, row_number() OVER (PARTITION BY f.tenant ORDER BY f.turn DESC, f.place) AS nth, count(*) OVER (PARTITION BY f.tenant) AS flows
        FROM unnest(p_places, p_tenants, p_runs, p_turns) AS f (place, tenant, runs, turn)
    ), tenant AS (
        SELECT t.*, row_number() OVER (ORDER BY t.runs, t.turn DESC, t.name) AS i, sum(t.runs) OVER (ORDER BY t.runs, t.turn DESC, t.name) AS sum
        FROM (SELECT f.tenant AS name, max(f.runs) AS runs, min(f.turn) AS turn, max(f.flows) AS flows FROM flow f GROUP BY f.tenant) AS t
    ), level AS (  -- the first n tenants get some, and end with at least `up_to` running
        SELECT max(t.i) AS n, (p_free + max(t.sum)) / max(t.i) AS up_to FROM tenant t WHERE t.runs * t.i - t.sum < p_free
    ), quota AS (
        SELECT t.name, t.flows, l.up_to - t.runs + CASE WHEN row_number() OVER (ORDER BY t.turn DESC, t.name) <= p_free + sum(t.runs) OVER () - l.n * l.up_to
                                              THEN 1 ELSE 0 END AS n, t.i
        FROM tenant t, level l WHERE t.i <= l.n
    )
    SELECT array_agg(s.place ORDER BY s.nth, s.i), array_agg(s.n ORDER BY s.nth, s.i) INTO places, quotas
    FROM (
        SELECT f.place, f.nth, q.i, (q.n / q.flows + CASE WHEN f.nth <= q.n % q.flows THEN 1 ELSE 0 END)::integer AS n
        FROM quota q JOIN flow f ON f.tenant = q.name
    ) AS s
    WHERE s.n > 0;
END $$;
