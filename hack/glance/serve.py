"""Serves a real OpenStack image service on loopback, for tests: files in a directory, SQLite, nobody has to log in.

It prints one line, "host:port", and ends when its standard input does, so that nothing is left over when its caller is
killed. With --token everybody needs that token, and a minimal identity service gives it out to the one user of --login;
its address is the second word of the line.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import threading

CONFIG = """\
[DEFAULT]
enabled_backends = files:file
[database]
connection = sqlite:///{dir}/glance.sqlite?timeout=60
[glance_store]
default_backend = files
[files]
filesystem_store_datadir = {dir}/images
[os_glance_staging_store]
filesystem_store_datadir = {dir}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {dir}/tasks
[paste_deploy]
config_file = {paste}
[import_filtering_opts]
allowed_hosts = [127.0.0.1]
allowed_ports = [{web_ports}]
[image_import_opts]
image_import_plugins = []
"""

WHO = {
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_USER_ID": "operator",
    "HTTP_X_PROJECT_ID": "images",
    "HTTP_X_ROLES": "admin,member,reader",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True, help="where everything is stored")
    parser.add_argument("--token", help="what X-Auth-Token must be; nothing without it")
    parser.add_argument("--login", help="user:password that the token is given for")
    parser.add_argument("--web-ports", default="80,443", help="ports that images may be downloaded from")
    options = parser.parse_args()
    threading.Thread(target=wait_for_end, daemon=True).start()
    # Others say this and that on the output: the one line goes to what it was.
    options.output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    directory = os.path.abspath(options.dir)
    for name in ("images", "staging", "tasks"):
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    # Who asks is told by headers that are set below, as the identity service's filter would.
    pipelines = (pathlib.Path(sys.prefix) / "etc/glance/glance-api-paste.ini").read_text(encoding="utf-8")
    paste = pathlib.Path(directory) / "glance-api-paste.ini"
    paste.write_text(pipelines.replace(" unauthenticated-context ", " context "), encoding="utf-8")
    config = CONFIG.format(dir=directory, paste=paste, web_ports=options.web_ports)
    path = os.path.join(directory, "glance-api.conf")
    pathlib.Path(path).write_text(config, encoding="utf-8")
    manage = os.path.join(os.path.dirname(sys.executable), "glance-manage")
    subprocess.run([manage, "--config-file", path, "db", "sync"], check=True)
    os.environ["OS_GLANCE_CONFIG_DIR"] = directory
    serve(options)


def wait_for_end():
    sys.stdin.buffer.read()
    os._exit(0)


def serve(options):
    from cheroot import wsgi
    from glance.wsgi.api import application
    from sqlalchemy import engine, event

    # An import goes on beside the requests. Of two transactions that have read and want to write, SQLite ends one at
    # once with an error; those that say at their begin that they write wait for each other.
    @event.listens_for(engine.Engine, "before_cursor_execute", retval=True)
    def begin_to_write(_conn, _cursor, statement, parameters, _context, _executemany):
        return ("BEGIN IMMEDIATE" if statement == "BEGIN" else statement), parameters

    # One request after the other: SQLite answers two that write at once with an error. More than one thread all the
    # same, for each waits for the first request of a connection.
    one = threading.Lock()

    def admit(environ, start_response):
        if options.token and environ.get("HTTP_X_AUTH_TOKEN") != options.token:
            start_response("401 Unauthorized", [("Content-Type", "text/plain")])
            return [b"a token is needed"]
        environ.update(WHO)
        with one:
            return application(environ, start_response)

    images = wsgi.Server(("127.0.0.1", 0), admit, numthreads=16, max=16)
    images.prepare()
    line = "%s:%d" % images.bind_addr[:2]
    if options.login:
        identity = wsgi.Server(("127.0.0.1", 0), Identity(options, line), numthreads=2)
        identity.prepare()
        threading.Thread(target=identity.serve, daemon=True).start()
        line += " %s:%d" % identity.bind_addr[:2]
    print(line, file=options.output, flush=True)
    images.serve()


class Identity:
    """As much of the identity service, version 3, as logging in needs."""

    def __init__(self, options, images):
        self.options, self.images = options, images

    def __call__(self, environ, start_response):
        length = int(environ.get("CONTENT_LENGTH") or 0)
        try:
            asked = json.loads(environ["wsgi.input"].read(length))["auth"]["identity"]
            login = self.login(asked)
        except (ValueError, KeyError):
            login = None
        right = environ["PATH_INFO"] == "/v3/auth/tokens" and environ["REQUEST_METHOD"] == "POST"
        if not right:
            start_response("404 Not Found", [("Content-Type", "application/json")])
            return [b"{}"]
        if login != self.options.login:
            start_response("401 Unauthorized", [("Content-Type", "application/json")])
            return [json.dumps({"error": {"code": 401, "message": "who are you"}}).encode()]
        catalog = [
            {"type": "compute", "endpoints": []},
            {
                "type": "image",
                "endpoints": [
                    {"interface": "internal", "region": "here", "region_id": "here", "url": "http://127.0.0.1:9"},
                    {"interface": "public", "region": "there", "region_id": "there", "url": "http://127.0.0.1:9"},
                    {"interface": "public", "region": "here", "region_id": "here", "url": "http://" + self.images},
                ],
            },
        ]
        body = {"token": {"catalog": catalog, "expires_at": "2999-01-01T00:00:00.000000Z"}}
        headers = [("Content-Type", "application/json"), ("X-Subject-Token", self.options.token)]
        start_response("201 Created", headers)
        return [json.dumps(body).encode()]

    @staticmethod
    def login(asked):
        if asked["methods"] == ["application_credential"]:
            credential = asked["application_credential"]
            return credential["id"] + ":" + credential["secret"]
        user = asked["password"]["user"]
        return user["name"] + ":" + user["password"]


if __name__ == "__main__":
    main()
