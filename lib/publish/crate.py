"""The site's manifest as RO-Crate metadata: every file with its type, size and checksum, for machines to read.

    python -m lib.publish.crate SITE

Runs in the environment `publish`, which holds the RO-Crate library and little else, so it imports nothing that needs
more. Rule: no clock; the site's date is that of its last record. Refused: a folder without facts.
"""

import hashlib
import json
import mimetypes
import sys
from pathlib import Path

from rocrate.rocrate import ROCrate

from lib.errors import RecordError, tell

KINDS = {".parquet": "application/vnd.apache.parquet", ".cff": "text/yaml", ".sha256": "text/plain", "": "text/plain"}
LICENCE = "https://creativecommons.org/licenses/by/4.0/"


def write(site: Path) -> Path:
    """Write the manifest of a site into it.

    Raises
    ------
    RecordError : no facts.json in its tables.
    """
    about = site / "tables" / "facts.json"
    if not about.exists():
        raise RecordError(f"{site} is no site of this study: it has no tables/facts.json. Run `make publish`.")
    facts = json.loads(about.read_text(encoding="utf-8"))
    crate = ROCrate()
    crate.name = facts["study"]["title"]
    crate.description = f"Study {facts['study']['name']} of first-token-sla: page, figures, tables and records."
    crate.license = LICENCE
    root = crate.root_dataset
    root["datePublished"] = max(launch["ended_utc"] for launch in facts["launches"].values())
    for path in sorted(p for p in site.rglob("*") if p.is_file()):
        name = path.relative_to(site).as_posix()
        guessed = KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        of = {
            "name": name,
            "encodingFormat": guessed,
            "contentSize": str(path.stat().st_size),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        entity = crate.add_file(str(path), dest_path=name, properties=of)
        if name == "index.html":
            root["mainEntity"] = entity
    crate.metadata.write(str(site))
    return site / "ro-crate-metadata.json"


def main() -> None:
    """Command line: the site's folder."""
    write(Path(sys.argv[1]))


if __name__ == "__main__":
    tell(main)
