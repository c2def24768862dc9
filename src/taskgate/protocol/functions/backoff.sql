-- Delay before the attempt after the p_attempts-th: exponential with jitter, 1 s doubling up to 5 min, times 0.5 to 1.5.
CREATE OR REPLACE FUNCTION backoff(p_attempts integer) RETURNS interval
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT least(300, power(2, least(p_attempts, 20) - 1)) * (0.5 + random()) * interval '1 second'
$$;
