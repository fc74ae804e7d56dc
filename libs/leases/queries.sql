-- name: beat
insert into workers as w (worker_id, lease_until)
values (%(worker_id)s, turnwire.clock() + make_interval(secs => %(lease_s)s))
on conflict (worker_id) do update set lease_until = excluded.lease_until;

-- name: give_up
delete from workers where worker_id = %(worker_id)s;
