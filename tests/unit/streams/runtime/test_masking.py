"""What is hidden of text that is kept, and what is not."""

from __future__ import annotations

import pytest

from streams.runtime.masking import masked, masked_command

PASSWORD = "Wonder5-land"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{PASSWORD}@db.example.org/synapse",
        f"postgres://:{PASSWORD}@h",
        f"redis://:{PASSWORD}@127.0.0.1:6379/0?channel=x",
        f"postgresql://user:a@{PASSWORD}@h/db",
        f"postgresql://user:a/{PASSWORD}@h/db",
        f"postgresql://h/db?user=a&password={PASSWORD}&sslmode=require",
        f"postgresql://h/db?sslpassword={PASSWORD}",
        f"host=h password={PASSWORD} user=u",
        f"host=h password='a \\' {PASSWORD}' user=u",
        f"host=h PASSWORD='a {PASSWORD}",
        f'password="a {PASSWORD}"',
        f"(psycopg2: connection to postgresql://u:{PASSWORD}@h failed)",
        f"postgresql://u:a'{PASSWORD}@h/db",
        f'postgresql://u:a"{PASSWORD}@h/db',
        f"postgresql://u:'{PASSWORD}'@h/db",
        f"postgresql://o'hara:{PASSWORD}@h/db",
        f"postgresql://u@site:{PASSWORD}@h/db",
        f"'postgresql://u:a\"{PASSWORD}@h/db' is no address",
        f"host=h password=a'{PASSWORD} user=u",
        f'host=h password=a"{PASSWORD} user=u',
        f"host=h password=a\\ {PASSWORD} user=u",
        f"host=h password='a'{PASSWORD} user=u",
        f"host=h password=a,{PASSWORD};{PASSWORD})",
        f"postgresql://h/db?password=a'{PASSWORD}&sslmode=require",
        f"{{'password': \"a'{PASSWORD}\", 'port': 1}}",
        f'{{"password": "a\\"{PASSWORD}", "port": 1}}',
        f"{{'password': b'a {PASSWORD}', 'port': 1}}",
        f"postgresql://u:{'x' * 2_000}{PASSWORD}@h/db",
        f"postgresql://h/db?p%61ss%57ord={PASSWORD}&sslmode=require",
        f"/login/?next=postgresql%3A%2F%2Fu%3Aa%2525{PASSWORD}%40h%2Fdb",
        f"/x?dsn=user%3Du%20password%3D{PASSWORD}",
        f"/x?dsn=password%3d%27a%20{PASSWORD}%27",
        f'could not translate host name "a@{PASSWORD}@h.example" to address',
        f"ALTER ROLE u PASSWORD 'a'' {PASSWORD}'",
        f"CREATE USER MAPPING FOR u SERVER s OPTIONS (user 'u', password E'{PASSWORD}')",
        f"dblink(password => '{PASSWORD}')",
        f"client_secret={PASSWORD}",
        f"REPLSITE_SECRET_KEY: '{PASSWORD}'",
    ],
)
def test_passwords_are_hidden(text):
    assert PASSWORD not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://reader@db.example.org:5432/synapse",
        "tcp://127.0.0.1:9092",
        "redis://127.0.0.1:6379/0?channel=example.org",
        "no facts of token=815 for @user:example.org",
        "the password is wrong",
        "http://h:8000/api/v1/users/%40alice%3Aexample.org/sync",
        "postgresql://o%27hara%40x@h/db?options=-c%20search_path%3Da",
        "100 % of it",
    ],
)
def test_what_is_no_password_stays(text):
    assert masked(text) == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["manage.py", "import_events", f"postgresql://u:{PASSWORD}@h/db"],
        ["manage.py", "x", "--api-token", PASSWORD],
        ["manage.py", "x", f"--secret={PASSWORD}", "y"],
        ["manage.py", "x", "--db-password", PASSWORD, "-v", "2"],
        ["manage.py", "import_events", f"postgresql://u:a'{PASSWORD}@h/db"],
        ["manage.py", "import_events", f"postgresql://u:a '{PASSWORD}\" \n/@h/db"],
        ["manage.py", "import_events", f"postgresql://u:{PASSWORD} b@h/db"],
        ["manage.py", "import_events", f"host=h password=a'{PASSWORD}"],
    ],
)
def test_command_lines_have_none(arguments):
    assert PASSWORD not in masked_command(arguments)
    assert masked_command(arguments).startswith("manage.py ")


def test_other_options_stay_as_they_are():
    said = [
        "manage.py",
        "follow",
        "tcp://h:1",
        "--secret-file",
        "/etc/secret",
        "--from",
        "events=0",
        "--password",
        "-v",
    ]
    assert masked_command(said) == " ".join(said)
