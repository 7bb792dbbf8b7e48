"""Certificates and keys of a Flower federation: an own certificate authority, the server's certificate, nodes' keys.

All use elliptic curve P-384. Private keys are readable by their owner alone; nothing is overwritten by default."""

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError

ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Names in every server certificate: jobs are submitted from the server's own machine."""
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825


def create_authority(folder: Path, *, overwrite: bool = False) -> None:
    """Write `folder`/ca.crt, which every node gets, and ca.key, which stays secret."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fdgsec federation")])
    builder = _valid(x509.CertificateBuilder(), AUTHORITY_DAYS).subject_name(name).issuer_name(name)
    builder = _identified(builder, key.public_key(), key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.add_extension(_usage(authority=True), critical=True).sign(key, hashes.SHA384())
    write_private(folder / "ca.key", _pem(key), overwrite=overwrite)
    _write_public(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), overwrite=overwrite)


def create_server_certificate(folder: Path, names: Sequence[str], *, overwrite: bool = False) -> None:
    """Write `folder`/server.pem and server.key for the DNS names and addresses `names` and ALWAYS, signed by ca.key.

    Raises UsageError where ca.key is missing or a name is invalid."""
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    alternatives = [_alternative(name) for name in dict.fromkeys(map(_canonical, [*names, *ALWAYS]))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fdgsec server")])
    builder = _valid(x509.CertificateBuilder(), SERVER_DAYS).subject_name(subject).issuer_name(authority.subject)
    builder = _identified(builder, key.public_key(), authority_key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    certificate = builder.add_extension(_usage(authority=False), critical=True).sign(authority_key, hashes.SHA384())
    write_private(folder / "server.key", _pem(key), overwrite=overwrite)
    _write_public(folder / "server.pem", certificate.public_bytes(serialization.Encoding.PEM), overwrite=overwrite)


def is_name(text: str) -> bool:
    """Tell whether `text` can be a DNS name."""
    return re.fullmatch(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", text.lower()) is not None


def certificate_names(certificate: Path) -> list[str]:
    """List the DNS names and addresses in a server's certificate, in its order."""
    held = _certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in held]


def certificate_gap(certificate: Path, names: Sequence[str], *, today: datetime | None = None) -> str | None:
    """Say why `certificate` is not valid for `names` today (a missing name, expired); None where it is."""
    found = _certificate(certificate)
    known = certificate_names(certificate)
    if missing := [name for name in names if _canonical(name) not in known]:
        return f"{certificate} does not name {', '.join(missing)} (but {', '.join(known)})"
    if found.not_valid_after_utc <= (today or datetime.now(UTC)):
        return f"{certificate} ended on {found.not_valid_after_utc:%Y-%m-%d}"
    return None


def create_node_key(path: Path, *, overwrite: bool = False) -> str:
    """Write a node's private key to `path` and its public key to `path`.pub, as ssh-keygen does; give the latter."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    beside = path.with_name(path.name + ".pub")
    _refuse_existing(beside, overwrite)
    write_private(path, private, overwrite=overwrite)
    public = _public_line(key.public_key())
    _write_public(beside, f"{public}\n".encode(), overwrite=overwrite)
    return public


def public_key(path: Path) -> str:
    """Read a node's public key and give it without its comment. Raises UsageError for any other file."""
    content = _read(path)
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(
            f"{path} is not a node's public key; expected one line that starts with ecdsa-sha2-nistp384, as "
            "`fdgsec join --new-key FILE` writes to FILE.pub."
        )
    return _public_line(key)


def public_key_line(pem: bytes) -> str:
    """Give a public key in PEM form as `public_key` does; "" for anything else."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return _public_line(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def check_node_key(path: Path) -> None:
    """Raise UsageError where `path` is not a private key for a node."""
    content = _read(path)
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} is not a node's private key; make one with `fdgsec join --new-key FILE`.")


def check_certificate(path: Path) -> None:
    """Raise UsageError where `path` holds no certificate."""
    _certificate(path)


def write_private(path: Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write a file that only its owner can ever read. Raises UsageError where it exists."""
    _refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _write_public(path: Path, content: bytes, *, overwrite: bool) -> None:
    _refuse_existing(path, overwrite)
    write_atomic(path, content)
    path.chmod(0o644)  # to be copied by others


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already and is not overwritten; name another file or remove it.")


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = serialization.load_pem_private_key(_read(folder / "ca.key"), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{folder / 'ca.key'} is not an elliptic curve key; remove it and ca.crt to begin anew.")
    return _certificate(folder / "ca.crt"), key


def _certificate(path: Path) -> x509.Certificate:
    content = _read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise UsageError(f"{path} is not a certificate in PEM form.") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def _valid(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begin = now - timedelta(hours=1)  # nodes' clocks may lag
    serial = x509.random_serial_number()
    return builder.serial_number(serial).not_valid_before(begin).not_valid_after(now + timedelta(days=days))


def _identified(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePublicKey, issuer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """Add the key and its identifiers, which strict verifiers (Python 3.13) require."""
    builder = builder.public_key(key).add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not is_name(name):
        raise UsageError(f"{name!r} is neither a DNS name nor an address.")
    return x509.DNSName(_canonical(name))


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()


def _public_line(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
