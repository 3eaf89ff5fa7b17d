"""From a built study to report/site/: everything a static host needs, with checksums, and one archive of it.

    python -m lib.publish.site PROFILE DEPTH [URL]

Rules: the site is made beside the old one and takes its place whole; what could not be made (the PDF without a
browser, the manifest without its library) is absent and the site says so. Refused: a rehearsal, a study that is not
built, and tables that are older than the records they name.
"""

import csv
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib import environments, paths, records
from lib.errors import ConfigError, EngineError, NoValue, RecordError, tell
from lib.publish import appendix
from lib.show import article, browser, figures, pictures
from lib.show.figures import Study

SITE = paths.REPORT / "site"
SUMS = "SHA256SUMS"
MANIFEST = "ro-crate-metadata.json"
NOTEBOOKS = "notebooks"
LEGAL = ("CITATION.cff", "LICENSE", "LICENSE-DATA")
CORRECTIONS = paths.DATA / "corrections.csv"


@dataclass
class Made:
    """What was made, and what is absent with its reason."""

    folder: Path
    absent: dict[str, str] = field(default_factory=dict)
    archive: Path | None = None


def publish(study: Study, out: Path = SITE, url: str = "", manifest: bool = True, build: Path | None = None) -> Made:
    """Make the site of a study and its archive beside it.

    Parameters
    ----------
    study : built: with tables, figures and records.
    out : folder of the site; what is there is replaced.
    url : where it will stand, for sharing cards; without it they name their picture relative to the page.
    manifest : whether to write the RO-Crate manifest, for which an environment may have to be made.
    build : folder of the study's executed notebooks; by default where `make report` leaves them.

    Raises
    ------
    ConfigError : a rehearsal, or an address that is none.
    RecordError : a file that is missing, or a record that is not the one the tables were made from.
    """
    if study.config.kind != "measured":
        raise ConfigError(f"Study {study.config.name!r} is a {study.config.kind}; only measurements are published.")
    if url and not url.startswith(("https://", "http://")):
        raise ConfigError(f"URL={url!r} is no address; write it as https://host/path/.")
    check_fresh(study)
    made, facts = Made(out), study.facts
    work = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    try:
        _copy(study, work)
        card = {
            "description": pictures.read(work / "figures" / "headline.svg").title,
            "image": f"{url.rstrip('/')}/figures/headline.png" if url else "figures/headline.png",
            "url": url,
        }
        notebooks = appendix.write(build or paths.BUILD / study.config.name, work / NOTEBOOKS, facts["study"]["title"])
        if not notebooks:
            made.absent[f"{NOTEBOOKS}/"] = "No executed notebook of this study was found; `make report` executes them."
        article.render(facts, work / "figures", work / "tables", work / "index.html", card=card, appendix=notebooks)
        _print(work, made)
        _about(study, work, made)
        if manifest:
            _manifest(work, made)
        sums = "".join(f"{records.sha256(path)}  {name}\n" for name, path in listed(work).items())
        records.write_whole(work / SUMS, sums.encode())
        shutil.rmtree(out, ignore_errors=True)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    made.archive = _archive(out, out.with_name(f"first-token-sla-{study.config.name}.tar.gz"))
    return made


def check_fresh(study: Study) -> None:
    """Refuse tables whose records have changed since, or are gone."""
    for path, source in sources(study.facts, study.folder, study.folder.parent):
        digest = records.sha256(path) if path.exists() else "none"
        if not source.endswith(f"#{digest[:12]}"):
            raise RecordError(
                f"The tables of study {study.config.name!r} were made from {source}, and {path} is another file "
                f"now. Run `make report`, which makes tables, figures and page anew, then publish."
            )


def sources(facts: Mapping[str, Any], own: Path, others: Path) -> Iterator[tuple[Path, str]]:
    """Every record that the facts name, with its source: in the folder `own`, and for each study beside in a folder of
    its name within `others`.
    """
    for launch, of in facts["launches"].items():
        yield own / f"{launch}.parquet", of["source"]
    for other in facts["beside"]:
        for source in other["sources"]:
            yield others / other["name"] / source.partition("#")[0].rpartition("/")[2], source


def listed(folder: Path) -> dict[str, Path]:
    """Every file of a site but the list of checksums, by its name within, sorted."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: found[name] for name in sorted(found) if name != SUMS}


def _copy(study: Study, work: Path) -> None:
    """Copy figures, tables, the records the tables name, and the legal texts."""
    drawn = [f"{name}.{kind}" for name in figures.FIGURES for kind in ("svg", "png")]
    laid = [path.name for path in sorted(study.tables.iterdir()) if path.suffix in (".csv", ".json")]
    wanted = {f"figures/{name}": study.figures / name for name in drawn}
    wanted |= {f"tables/{name}": study.tables / name for name in laid}
    wanted |= {name: paths.ROOT / name for name in LEGAL}
    for record, _ in sources(study.facts, study.folder, study.folder.parent):
        within = "records" if record.parent == study.folder else f"records/{record.parent.name}"
        for suffix in ("parquet", "parquet.sha256", "telemetry.parquet", "telemetry.parquet.sha256"):
            path = record.with_name(f"{record.stem}.{suffix}")
            if path.exists():
                wanted[f"{within}/{path.name}"] = path
    for name, path in wanted.items():
        if not path.exists():
            raise RecordError(f"{path} does not exist; run `make report`, which makes it, then publish.")
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, work / name)


def _print(work: Path, made: Made) -> None:
    try:
        with browser.Browser() as of:
            of.open(work / "index.html")
            records.write_whole(work / "article.pdf", of.pdf())
    except NoValue as refusal:
        made.absent["article.pdf"] = str(refusal)


def _about(study: Study, work: Path, made: Made) -> None:
    page = article.templates().get_template("about.html.j2")
    text = page.render(
        study=study.facts["study"],
        stamp=figures.stamp(study.facts),
        absent=made.absent,
        corrections=_corrections(),
        files=[(name, path.stat().st_size, records.sha256(path)) for name, path in listed(work).items()],
        **article.dress(),
    )
    records.write_whole(work / "about.html", text.encode())


def _corrections() -> list[dict[str, str]]:
    with CORRECTIONS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _manifest(work: Path, made: Made) -> None:
    """Let the RO-Crate library write the manifest, in an environment of its own."""
    try:
        python = environments.ensure("publish")
    except EngineError as refusal:
        made.absent[MANIFEST] = str(refusal)
        return
    done = subprocess.run(
        [str(python), "-m", "lib.publish.crate", str(work)],
        cwd=paths.ROOT,
        env=os.environ | {"PYTHONPATH": str(paths.ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"The manifest could not be written: {done.stderr.strip()[-400:]}")


def _archive(folder: Path, out: Path) -> Path:
    """Pack the site, the same bytes from the same files, with its checksum beside it."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
        for name, path in [*listed(folder).items(), (SUMS, folder / SUMS)]:
            entry = tarfile.TarInfo(f"{out.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    records.write_whole(out, packed.getvalue())
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    records.write_whole(out.with_name(out.name + ".sha256"), f"{digest}  {out.name}\n".encode())
    return out


def main() -> None:
    """Command line: profile, depth and, if it is known, the address."""
    profile, depth, *url = sys.argv[1:4]
    made = publish(figures.load(profile, depth), url="".join(url))
    print(f"The site: {made.folder.relative_to(paths.ROOT)}/index.html, {len(listed(made.folder))} files")
    for name, why in made.absent.items():
        print(f"Without {name}: {why}")
    assert made.archive is not None
    print(f"The archive: {made.archive.relative_to(paths.ROOT)}, {made.archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    tell(main)
