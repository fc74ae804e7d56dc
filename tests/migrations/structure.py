"""What must be true of tables, policies, keys, functions and roles, read from the catalogue.

Every function returns what is wrong, one line each; a new table has to be put into one of the two
lists here by whoever makes it.
"""

import re
from collections.abc import Iterable
from typing import Any

import psycopg

from tests.migrations.rights_matrix import LOGINS, SCHEMAS, SERVICES, WITHOUT_LOGIN

UNDER_POLICY = frozenset(
    {
        "frontend_gateway.principals",
        "ingestion.conversations",
        "ingestion.branches",
        "ingestion.turns",
        "ingestion.messages",
        "ingestion.archived_messages",
        "ingestion.message_tokens",
        "ingestion.purged_conversations",
        "ingestion.transitions",
        "ingestion.operator_actions",
        "context_assembly.steps",
        "context_assembly.plans",
        "context_assembly.payloads",
        "context_assembly.captures",
        "context_assembly.token_counts",
        "context_assembly.instructions",
        "context_assembly.capture_postures",
        "context_assembly.capture_flags",
        "context_assembly.capture_reads",
        "llm_gateway.attempts",
        "llm_gateway.usage",
        "llm_gateway.results",
        "llm_gateway.partials",
    }
)
"""A tenant's data: nobody sees a row of a tenant that the transaction did not name."""

WITHOUT_POLICY = frozenset(
    {
        "turnwire.migrations",
        "frontend_gateway.tenants",
        "frontend_gateway.api_keys",
        "frontend_gateway.door_keys",
        "frontend_gateway.ui_sessions",
        "frontend_gateway.operator_actions",
        "ingestion.open_turns",
        "ingestion.request_outcomes",
        "llm_gateway.work",
        "llm_gateway.workers",
        *(f"{schema}.instances" for schema in SERVICES),
        *(
            f"{schema}.{table}"
            for schema in ("ingestion", "context_assembly", "llm_gateway")
            for table in ("outbox", "outbox_dead", "inbox", "dead_letters", "operator_acts")
        ),
    }
)
"""Read before a tenant is known; only the service itself and definer functions touch them."""

TENANTS_CHECK = "(( SELECT turnwire.tenants() AS tenants) @> ARRAY[tenant_id])"
IDENTITIES = frozenset(
    {"ingestion.messages.observed_no"}
    | {f"{schema}.outbox.id" for schema in ("ingestion", "context_assembly", "llm_gateway")}
)

CLOCKS_AND_IDS = re.compile(
    r"\b(?:now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|random"
    r"|gen_random_uuid|uuidv4|uuidv7|nextval)\s*\(|\b(?:current_(?:timestamp|date|time)"
    r"|localtime(?:stamp)?)\b",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

Connection = psycopg.Connection[Any]


def _all(connection: Connection, query: str, **values: object) -> list[tuple[Any, ...]]:
    return connection.execute(query, {"schemas": list(SCHEMAS), **values}).fetchall()


def table_faults(connection: Connection) -> list[str]:
    """Tables in neither list, without FORCE, or with other policies than the two."""
    rows = _all(
        connection,
        """
        select n.nspname || '.' || c.relname, n.nspname, c.relrowsecurity, c.relforcerowsecurity,
               exists (select from pg_attribute a where a.attrelid = c.oid
                          and a.attname = 'tenant_id' and not a.attisdropped),
               pg_get_userbyid(c.relowner),
               coalesce((select jsonb_object_agg(p.polname, jsonb_build_array(
                   p.polcmd, p.polpermissive, (select jsonb_agg(case when r = 0 then 'public'
                             else pg_get_userbyid(r) end) from unnest(p.polroles) r),
                   pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)))
                 from pg_policy p where p.polrelid = c.oid), '{}')
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind in ('r', 'p')
         order by 1
        """,
    )
    faults: list[str] = []
    for name, schema, enabled, forced, has_tenant, owner, policies in rows:
        if (name in UNDER_POLICY) == (name in WITHOUT_POLICY):
            faults.append(f"{name} is in neither list (or in both); put it into one")
        if name in WITHOUT_POLICY and (enabled or policies):
            faults.append(f"{name} is listed without policy and has one")
        if name in WITHOUT_POLICY or (not has_tenant and name not in UNDER_POLICY):
            continue
        if not (enabled and forced):
            faults.append(f"{name} holds a tenant's rows without ENABLE and FORCE")
        if owner != f"{schema}_owner":
            faults.append(f"{name} belongs to {owner}")
        expected = {
            "tenants": ["*", True, ["public"], TENANTS_CHECK, TENANTS_CHECK],
            "maintenance": ["*", True, [f"{schema}_maint"], "true", "true"],
        }
        if policies != expected:
            faults.append(f"{name} has the policies {policies}")
    present = {row[0] for row in rows}
    faults += [f"{name} is listed and does not exist" for name in UNDER_POLICY - present]
    faults += [f"{name} is listed and does not exist" for name in WITHOUT_POLICY - present]
    return faults


def key_faults(connection: Connection) -> list[str]:
    """Primary and foreign keys of a tenant's data that do not begin with tenant_id."""
    rows = _all(
        connection,
        """
        select n.nspname || '.' || c.relname,
               (select a.attname from pg_attribute a
                 where a.attrelid = c.oid and a.attnum = k.conkey[1]), k.contype, k.conname
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
          left join pg_constraint k on k.conrelid = c.oid and k.contype in ('p', 'f')
         where n.nspname = any(%(schemas)s) and c.relkind in ('r', 'p')
        """,
    )
    kept = {name for name, _, kind, _ in rows if kind == "p"}
    return [
        f"{name}: key {key} begins with {column}"
        for name, column, _, key in rows
        if name not in WITHOUT_POLICY and key is not None and column != "tenant_id"
    ] + [f"{name} has no primary key" for name in sorted({row[0] for row in rows} - kept)]


def function_faults(connection: Connection) -> list[str]:
    """Definer functions that are open, without a fixed path, or with an owner of too much."""
    rows = _all(
        connection,
        """
        select n.nspname || '.' || p.proname, n.nspname, pg_get_userbyid(p.proowner), p.proconfig,
               has_function_privilege('public', p.oid, 'execute'), p.prosecdef, p.proname
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = any(%(schemas)s)
        """,
    )
    faults: list[str] = []
    for name, schema, owner, config, is_open, is_definer, plain in rows:
        if is_definer != (plain.endswith("_v1") or is_definer):
            faults.append(f"{name} is published and not SECURITY DEFINER")
        if not is_definer:
            continue
        wanted = f"search_path={schema}, turnwire, pg_catalog"
        if wanted not in (config or []):
            faults.append(f"{name} has the settings {config}, not {wanted}")
        if is_open:
            faults.append(f"{name} may be executed by everybody")
        kind = "reader" if plain.endswith("_v1") else "maint"
        if owner != f"{schema}_{kind}":
            faults.append(f"{name} belongs to {owner}, not to {schema}_{kind}")
    return faults


def view_faults(connection: Connection) -> list[str]:
    """Views of another owner than the schema's reader, and published ones without a barrier.

    A view that nobody else may read needs none: who asks it wrote the conditions.
    """
    rows = _all(
        connection,
        """
        select n.nspname || '.' || c.relname, n.nspname, pg_get_userbyid(c.relowner), c.reloptions,
               exists (select from aclexplode(c.relacl) a where a.grantee <> c.relowner)
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind in ('v', 'm')
        """,
    )
    return [
        f"{name} belongs to {owner} and has the options {options}"
        for name, schema, owner, options, is_published in rows
        if owner != f"{schema}_reader"
        or (
            is_published
            and not {"security_barrier=true", "security_barrier=on"} & set(options or [])
        )
    ]


def role_faults(connection: Connection) -> list[str]:
    """Roles that could step around the policies, or into another role."""
    rows = _all(
        connection,
        """
        select rolname, rolcanlogin, rolsuper or rolbypassrls or rolcreaterole or rolcreatedb
               or rolreplication,
               array(select pg_get_userbyid(m.roleid) from pg_auth_members m where m.member = r.oid)
          from pg_roles r where rolname = any(%(roles)s)
        """,
        roles=[*LOGINS, *WITHOUT_LOGIN],
    )
    faults = [
        f"there is no role {role}" for role in {*LOGINS, *WITHOUT_LOGIN} - {r[0] for r in rows}
    ]
    for name, can_login, is_mighty, memberships in rows:
        if can_login != (name in LOGINS):
            faults.append(f"{name} {'may' if can_login else 'may not'} log in")
        if is_mighty:
            faults.append(f"{name} has an attribute that reaches beyond grants")
        if memberships:
            faults.append(f"{name} is a member of {memberships}")
    return faults


def owner_faults(connection: Connection) -> list[str]:
    """Things in a service's schema that belong to somebody outside it."""
    rows = _all(
        connection,
        """
        select n.nspname, n.nspname || '.' || c.relname, pg_get_userbyid(c.relowner), c.relkind
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind in ('r', 'p', 'S', 'v', 'm')
        union all
        select n.nspname, n.nspname || '.' || p.proname, pg_get_userbyid(p.proowner), 'f'
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = any(%(schemas)s)
        """,
    )
    return [
        f"{name} belongs to {owner}"
        for schema, name, owner, _ in rows
        if schema in SERVICES and not owner.startswith(f"{schema}_")
    ]


def clock_faults(connection: Connection) -> list[str]:
    """Stored SQL with a clock of its own, and columns that make ids or times by default."""
    sources = _all(
        connection,
        """
        select n.nspname || '.' || p.proname, p.prosrc
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = any(%(schemas)s) and (n.nspname, p.proname) <> ('turnwire', 'clock')
        union all
        select n.nspname || '.' || c.relname, pg_get_viewdef(c.oid)
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind in ('v', 'm')
        union all
        select n.nspname || '.' || c.relname || '.' || a.attname,
               pg_get_expr(d.adbin, d.adrelid) || case when pg_get_expr(d.adbin, d.adrelid)
                 like '%%turnwire.clock%%'
                   or a.atttypid in ('timestamptz'::regtype, 'uuid'::regtype)
                 then ' now()' else '' end
          from pg_attrdef d join pg_class c on c.oid = d.adrelid
          join pg_attribute a on a.attrelid = c.oid and a.attnum = d.adnum
          join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s)
        """,
    )
    identities = _all(
        connection,
        """
        select n.nspname || '.' || c.relname || '.' || a.attname
          from pg_attribute a join pg_class c on c.oid = a.attrelid
          join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and a.attidentity <> ''
        """,
    )
    return [
        f"{name} uses {match[0]}"
        for name, text in sources
        if (match := CLOCKS_AND_IDS.search(_COMMENT.sub("", text)))
    ] + [f"{name} is numbered by the database" for (name,) in identities if name not in IDENTITIES]


def all_faults(connection: Connection) -> list[str]:
    """Everything that is wrong."""
    checks = (
        table_faults,
        key_faults,
        function_faults,
        view_faults,
        role_faults,
        owner_faults,
        clock_faults,
    )
    return [fault for check in checks for fault in _sorted(check(connection))]


def _sorted(faults: Iterable[str]) -> list[str]:
    return sorted(faults)
