-- The advisory lock of claim. For schema public: 8386110886273709157, the ASCII bytes of "taskgate".
-- lock_key() + 1 is held shared by transactions that insert tasks, see announce_ready.
-- (Made with the number in it, so that it costs nothing where it is called.)
DO $do$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION lock_key() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS %L', format(
        'SELECT %s::bigint',
        CASE current_schema() WHEN 'taskgate' THEN 8386110886273709157
        ELSE hashtextextended(current_schema()::text, 8386110886273709157) END));
END $do$;
