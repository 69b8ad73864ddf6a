"""An authority of a test's own: it signs certificates that hold from one day to another, also of the past."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

CONFIG = """\
[ca]
default_ca = here
[here]
database = index.txt
unique_subject = no
rand_serial = yes
new_certs_dir = .
default_md = sha256
policy = any
[any]
commonName = supplied
"""
PAST, PRESENT, FUTURE = (-2, -1), (-1, 30), (1, 30)  # from when to when, in days from now


class CertificateAuthority:
    """`ca.crt` in a folder, and beside it a folder for each that it has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> "CertificateAuthority":
        """A new one."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.cnf").write_text(CONFIG)
        (folder / "index.txt").touch()
        made = cls(folder)
        made._openssl("req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.crt "
                      "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign")  # fmt: skip
        return made

    @property
    def certificate(self) -> Path:
        """Whom to trust."""
        return self.folder / "ca.crt"

    def sign(
        self, name: str, holds: tuple[float, float] = PRESENT, address: str = "127.0.0.1", called: str = ""
    ) -> Path:
        """A certificate for this address, `called` so or by its name; the folder with `tls.crt` and `tls.key`."""
        here = self.folder / name
        here.mkdir(exist_ok=True)
        (here / "tls.ext").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth,clientAuth\n")
        begin, end = (f"{datetime.now(UTC) + timedelta(days=days):%Y%m%d%H%M%SZ}" for days in holds)
        subject = f"-subj /CN={called or name}"
        self._openssl(f"req -new -newkey rsa:2048 -nodes -keyout {name}/tls.key -out {name}/tls.csr {subject}")
        self._openssl(f"ca -batch -notext -config ca.cnf -cert ca.crt -keyfile ca.key -in {name}/tls.csr "
                      f"-out {name}/tls.crt -startdate {begin} -enddate {end} -extfile {name}/tls.ext")  # fmt: skip
        return here

    def _openssl(self, words: str) -> None:
        openssl = shutil.which("openssl") or "openssl"
        subprocess.run([openssl, *words.split()], cwd=self.folder, check=True, capture_output=True)
