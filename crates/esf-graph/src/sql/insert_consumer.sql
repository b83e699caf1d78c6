INSERT INTO consumers (run, name, unit, usable_only, created_at, created_by, cursor, offered, trainer_step)
VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0)
