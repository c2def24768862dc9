-- Whether tasks wait, by the directory of flows, that are of none of these types. It looks between the types, where the index
-- leads (in its order, whatever the database's is), not at each flow. The caller has set how queries are planned.
CREATE OR REPLACE FUNCTION others_wait(p_types text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last text := '';
    each text;
BEGIN
    IF cardinality(p_types) = 1 AND p_types[1] IS NOT NULL THEN  -- as often, and without sorting
        RETURN EXISTS (SELECT FROM flows f WHERE f.task_type < p_types[1]) OR EXISTS (SELECT FROM flows f WHERE f.task_type > p_types[1]);
    END IF;
    FOREACH each IN ARRAY ARRAY(SELECT DISTINCT u COLLATE "C" FROM unnest(p_types) AS u WHERE u IS NOT NULL ORDER BY 1) LOOP
        IF EXISTS (SELECT FROM flows f WHERE f.task_type > last AND f.task_type < each) THEN
            RETURN true;
        END IF;
        last := each;
    END LOOP;
    RETURN EXISTS (SELECT FROM flows f WHERE f.task_type > last);
END $$;
