"""An address to a file system, by fsspec.

Enters: a path, or an address such as `s3://bucket/folder`. Leaves: fsspec's file system and the
path in it. Never knows: what lies there.
"""

from typing import Any

from longhaul.core.addresses import scrubbed, unsealed, without_secrets
from longhaul.core.errors import RecipeError

_EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hf"}
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_FOLDERLESS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory", "hf"})
"""Stores of keys, in which a folder is a way of speaking. Making one there may even make a
bucket, which is for a person to do."""


def install_command(scheme: str, missing: object) -> str:
    """How to install what fsspec needs for a scheme.

    Args:
        scheme: such as `s3`.
        missing: what the import said, for schemes that are not known here.
    """
    if scheme in _EXTRAS:
        return f"pip install 'longhaul[{_EXTRAS[scheme]}]'"
    return f"pip install {_PACKAGES.get(scheme, missing)}"


def locate(address: str) -> tuple[Any, str]:
    """The file system of `address` and the path in it.

    Listings are never cached: another process may write there too.

    Raises:
        RecipeError: no file system has this scheme, or its package is not installed.
    """
    import fsspec

    scheme = address.partition("://")[0] if "://" in address else "file"
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in ("file", "local"):
        options["auto_mkdir"] = True
    try:
        system, root = fsspec.core.url_to_fs(unsealed(address), **options)
    except ImportError as error:
        raise RecipeError(
            f"checkpoint.remote: {scheme}:// needs a package that is not here",
            install_command(scheme, error),
        ) from None
    except ValueError as error:
        raise RecipeError(
            f"checkpoint.remote: {without_secrets(address)}: {scrubbed(str(error))}",
            "give a folder, or an address such as s3://bucket/folder",
        ) from None
    return system, str(root).rstrip("/")


def makes_folders(system: Any) -> bool:
    """Whether folders must be made before files can lie in them."""
    return not _FOLDERLESS & set(_protocols(system))


def is_local(system: Any) -> bool:
    """Whether its files are those of this machine, so that they can be fsynced."""
    return "file" in _protocols(system)


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return protocol if isinstance(protocol, tuple) else (protocol,)
