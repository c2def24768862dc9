-- The advisory lock of claim. For schema public: 8386110886273709157, the ASCII bytes of "taskgate".
-- lock_key() + 1 is held shared by transactions that insert tasks, see announce_ready.
CREATE OR REPLACE FUNCTION lock_key() RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE SET search_path FROM CURRENT AS $$
    SELECT CASE current_schema() WHEN 'taskgate' THEN 8386110886273709157
           ELSE hashtextextended(current_schema()::text, 8386110886273709157) END
$$;
