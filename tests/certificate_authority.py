"""A certificate authority for a single test; it also signs certificates that are expired or not valid yet."""

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
PAST, PRESENT, FUTURE = (-2, -1), (-1, 30), (1, 30)  # validity, in days from now


class CertificateAuthority:
    """A folder with `ca.crt` and a subfolder for each certificate that the authority has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> "CertificateAuthority":
        """Create the key and certificate of an authority in this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.cnf").write_text(CONFIG)
        (folder / "index.txt").touch()
        authority = cls(folder)
        authority._openssl("req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.crt "
                      "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign")  # fmt: skip
        return authority

    @property
    def certificate(self) -> Path:
        """The certificate to trust."""
        return self.folder / "ca.crt"

    def sign(
        self, name: str, validity: tuple[float, float] = PRESENT, address: str = "127.0.0.1", subject: str = ""
    ) -> Path:
        """Sign a certificate for this address; return the folder with `tls.crt` and `tls.key`."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "tls.ext").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth,clientAuth\n")
        begin, end = (f"{datetime.now(UTC) + timedelta(days=days):%Y%m%d%H%M%SZ}" for days in validity)
        subject_option = f"-subj /CN={subject or name}"
        self._openssl(f"req -new -newkey rsa:2048 -nodes -keyout {name}/tls.key -out {name}/tls.csr {subject_option}")
        self._openssl(f"ca -batch -notext -config ca.cnf -cert ca.crt -keyfile ca.key -in {name}/tls.csr "
                      f"-out {name}/tls.crt -startdate {begin} -enddate {end} -extfile {name}/tls.ext")  # fmt: skip
        return folder

    def _openssl(self, arguments: str) -> None:
        openssl = shutil.which("openssl") or "openssl"
        subprocess.run([openssl, *arguments.split()], cwd=self.folder, check=True, capture_output=True)
