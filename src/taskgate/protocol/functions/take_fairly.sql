-- take, for more than one flow or where groups have limits.
CREATE OR REPLACE FUNCTION take_fairly(
    p_free integer, p_types text[], p_now timestamptz, p_alive bigint[], p_limited boolean,
    INOUT ledger claim_ledger, OUT rows_at tid[], OUT verdict text, OUT left_over boolean, OUT wait interval,
    OUT reserved token_reservations[], OUT started timestamptz
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    most_rounds constant integer := 16;
    free integer := p_free;
    running jsonb;
    full_ record;
    f record;          -- the flows, as line_up has them
    is_open boolean[]; -- may have more that can run
    got integer[];     -- how many were taken
    runs integer[];    -- what the tenant ran before
    g record;          -- the groups that have limits, as rooms_of has them
    rooms integer[];
    tokens double precision[];
    starts integer[];  -- how many of the group were taken
    seconds double precision;
    top integer;
    open_ record;
    part record;
    quota integer;
    at integer;
    ids bigint[];
    quotas integer[];
    places integer[];
    skips integer[];
    hit record;
    before integer;
    n integer;
    room_of integer;
    shut integer[] := '{}';  -- groups that have not enough tokens for the one in front
    part_ record;
    served integer[] := '{}'; -- places in f, in order of service
    seqs bigint[] := '{}';
    dues timestamptz[] := '{}';
    hit_limit boolean := false;
    some_dry boolean := false;
    sifted boolean := false;
BEGIN
    IF p_limited THEN
        running := running_groups(p_alive);
        p_now := clock_timestamp();  -- again: what was not counted had ended by now, so the rows' own times prove it
        IF EXISTS (SELECT FROM token_reservations) THEN
            ledger := settle_tokens(p_alive, p_now, false, ledger);
        END IF;
        SELECT * INTO full_ FROM full_groups(running, ledger.buckets, p_now);
    ELSE
        SELECT NULL::text[] AS scopes, NULL::text[] AS names, NULL::double precision[] AS waits,
               '{}'::text[] AS types, '{}'::text[] AS models, '{}'::text[] AS upstreams, '{}'::text[] AS tenants INTO full_;
    END IF;
    SELECT * INTO f FROM line_up(p_free, p_types, p_now, ledger, (random() * 1.8e19 - 9e18)::bigint,
                                 full_.types, full_.models, full_.upstreams, full_.tenants);
    left_over := false;
    started := p_now;
    IF f.ids IS NOT NULL THEN
        is_open := array_fill(true, ARRAY[cardinality(f.ids)]);
        got := array_fill(0, ARRAY[cardinality(f.ids)]);
        IF p_limited THEN
            SELECT * INTO g FROM rooms_of(running, ledger.buckets, p_now, f.types, f.models, f.upstreams, f.tenants);
            rooms := g.rooms;
            tokens := g.tokens;
            starts := array_fill(0, ARRAY[coalesce(cardinality(rooms), 0)]);
        END IF;
        IF f.tenants <> array_fill(f.tenants[1], ARRAY[cardinality(f.tenants)]) THEN
            running := coalesce(running, running_groups(p_alive));
            SELECT array_agg(coalesce((running ->> ('tenant/' || t.name))::integer, 0)) INTO runs FROM unnest(f.tenants) AS t (name);
        ELSE
            runs := got;
        END IF;
        FOR round IN 1 .. most_rounds LOOP
            SELECT max(o.level) INTO top FROM unnest(f.levels, is_open) AS o (level, is_open) WHERE o.is_open;
            EXIT WHEN top IS NULL;
            EXIT WHEN free = 0;
            SELECT array_agg(o.place) AS places, array_agg(o.tenant) AS tenants, array_agg(o.runs) AS runs, array_agg(o.turn) AS turns INTO open_
            FROM (
                SELECT o.place::integer, o.tenant, (o.runs + sum(o.got) OVER (PARTITION BY o.tenant))::integer AS runs,
                       o.turn - 1000000 * (o.got > 0)::integer AS turn, o.is_open AND o.level = top AS is_open
                FROM unnest(f.levels, f.tenants, f.turns, runs, got, is_open) WITH ORDINALITY AS o (level, tenant, turn, runs, got, is_open, place)
            ) AS o WHERE o.is_open;
            SELECT * INTO part FROM share(free, open_.places, open_.tenants, open_.runs, open_.turns);
            ids := '{}'; quotas := '{}'; places := '{}'; skips := '{}';
            FOR i IN 1 .. cardinality(part.places) LOOP
                at := part.places[i];
                quota := part.quotas[i];
                IF p_limited THEN
                    FOR k IN 1 .. 4 LOOP
                        quota := least(quota, rooms[g.room_at[k][at]]);
                    END LOOP;
                    IF quota <= 0 THEN
                        hit_limit := true;
                        is_open[at] := false;
                        CONTINUE;
                    END IF;
                    FOR k IN 1 .. 4 LOOP
                        IF g.room_at[k][at] > 0 THEN
                            rooms[g.room_at[k][at]] := rooms[g.room_at[k][at]] - quota;
                        END IF;
                    END LOOP;
                END IF;
                ids := ids || f.ids[at];
                quotas := quotas || quota;
                places := places || at;
                skips := skips || got[at];
            END LOOP;
            CONTINUE WHEN cardinality(ids) = 0;
            SELECT * INTO hit FROM pick(ids, quotas, skips, p_now, ledger);
            before := 0;
            FOR i IN 1 .. cardinality(ids) LOOP
                at := places[i];
                n := hit.counts[i];
                IF n < quotas[i] THEN
                    is_open[at] := false;
                    some_dry := some_dry OR n = 0;
                END IF;
                IF p_limited THEN
                    IF n > 0 AND num_nonnulls(tokens[g.room_at[1][at]], tokens[g.room_at[2][at]],
                                              tokens[g.room_at[3][at]], tokens[g.room_at[4][at]]) > 0 THEN
                        SELECT * INTO part_ FROM reserve(
                            hit.rows_at[before + 1 : before + n], ARRAY[g.room_at[1][at], g.room_at[2][at], g.room_at[3][at], g.room_at[4][at]],
                            g.names, tokens, g.tokens_rate, g.tokens_most, g.tokens_default);
                        tokens := part_.tokens;
                        reserved := reserved || part_.reserved;
                        n := part_.n;
                        IF part_.empty IS NOT NULL THEN  -- the next one has to wait for tokens, and nobody of its group goes before it
                            hit_limit := true;
                            seconds := least(seconds, part_.wait);
                            is_open[at] := false;
                            shut := shut || part_.empty;
                        END IF;
                    END IF;
                    FOR k IN 1 .. 4 LOOP
                        room_of := g.room_at[k][at];
                        IF room_of > 0 THEN
                            rooms[room_of] := rooms[room_of] + quotas[i] - n;
                            starts[room_of] := starts[room_of] + n;
                        END IF;
                    END LOOP;
                    FOREACH room_of IN ARRAY shut LOOP
                        rooms[room_of] := 0;
                    END LOOP;
                END IF;
                rows_at := rows_at || hit.rows_at[before + 1 : before + n];
                before := before + hit.counts[i];
                CONTINUE WHEN n = 0;
                free := free - n;
                got[at] := got[at] + n;
                served := at || served;
                seqs := hit.seqs[i] || seqs;
                dues := hit.dues[i] || dues;
            END LOOP;
            IF some_dry AND NOT sifted AND free > 0 THEN
                sifted := true;
                is_open := have_tasks(f.ids, is_open, p_now, ledger);
            END IF;
        END LOOP;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(is_open), 0) LOOP
        EXIT WHEN left_over;
        left_over := is_open[i];
        CONTINUE WHEN NOT p_limited;
        left_over := left_over AND NOT ( least(rooms[g.room_at[1][i]], rooms[g.room_at[2][i]],
                                                             rooms[g.room_at[3][i]], rooms[g.room_at[4][i]], 1) <= 0);
    END LOOP;
    rows_at := nullif(rows_at, '{}');
    IF rows_at IS NOT NULL THEN
        verdict := 'claimed';
        SELECT array_agg(f.ids[s.at] ORDER BY s.ord) INTO ids FROM unnest(served) WITH ORDINALITY AS s (at, ord);
        ledger := touch_flows(ledger, ids, seqs, dues);
        IF ledger.aged && ids THEN  -- its first task is another one now
            SELECT coalesce(array_agg(a.id), '{}'), coalesce(array_agg(a.age), '{}') INTO ledger.aged, ledger.ages
            FROM unnest(ledger.aged, ledger.ages) AS a (id, age) WHERE NOT a.id = ANY (ids);
        END IF;
        FOR i IN 1 .. coalesce(cardinality(starts), 0) LOOP
            IF starts[i] > 0 AND num_nonnulls(g.requests[i], tokens[i]) > 0 THEN
                ledger.buckets := ledger.buckets || jsonb_build_object(g.names[i], jsonb_build_object(
                    'requests', g.requests[i] - starts[i], 'tokens', tokens[i], 'at', extract(epoch FROM p_now)));
            END IF;
        END LOOP;
    ELSIF f.more OR true = ANY (is_open) THEN
        verdict := 'unsure';
    ELSE
        verdict := CASE WHEN hit_limit THEN 'limited' ELSE 'empty' END;
        IF full_.scopes IS NOT NULL THEN
            SELECT CASE WHEN count(*) > 0 THEN 'limited' ELSE verdict END, least(seconds, min(w.wait_seconds)) INTO verdict, seconds
            FROM flows d, unnest(full_.scopes, full_.names, full_.waits) AS w (scope, name, wait_seconds)
            WHERE d.task_type = ANY (p_types)
              AND w.name = CASE w.scope WHEN 'type' THEN d.task_type WHEN 'model' THEN d.model WHEN 'upstream' THEN d.upstream ELSE d.tenant END;
        END IF;
        wait := seconds * interval '1 second';
    END IF;
END $$;

-- Takes tokens for these rows, one after the other, from the groups at these places (0: none), until one does not get
-- what it needs. (Never more than the bucket can hold, or it would wait for ever.)
-- n: how many got theirs; empty: the group that had not enough; wait: seconds until it has.
CREATE OR REPLACE FUNCTION reserve(
    p_rows tid[], p_groups integer[], p_names text[], INOUT tokens double precision[], p_rate double precision[],
    p_most double precision[], p_default integer[],
    OUT n integer, OUT empty integer, OUT wait double precision, OUT reserved token_reservations[]
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    places integer[] := ARRAY(SELECT DISTINCT p FROM unnest(p_groups) AS p WHERE tokens[p] IS NOT NULL);
    default_tokens integer := (SELECT max(p_default[p]) FROM unnest(places) AS p);
    place integer;
    task record;
BEGIN
    n := 0;
    reserved := '{}';
    FOR task IN
        SELECT t.task_id, token_estimate(t.request, default_tokens) AS tokens
        FROM unnest(p_rows) WITH ORDINALITY AS r (at, ord) JOIN tasks t ON t.ctid = r.at ORDER BY r.ord
    LOOP
        FOREACH place IN ARRAY places LOOP
            IF tokens[place] < least(task.tokens, p_most[place]) THEN
                empty := place;
                wait := greatest(wait, (least(task.tokens, p_most[place]) - tokens[place]) / p_rate[place]);
            END IF;
        END LOOP;
        EXIT WHEN empty IS NOT NULL;
        reserved := reserved || ROW (0, task.task_id, (SELECT array_agg(p_names[p]) FROM unnest(places) AS p),
                                     (SELECT array_agg(least(task.tokens, p_most[p])) FROM unnest(places) AS p))::token_reservations;
        FOREACH place IN ARRAY places LOOP
            tokens[place] := tokens[place] - least(task.tokens, p_most[place]);
        END LOOP;
        n := n + 1;
    END LOOP;
END $$;
