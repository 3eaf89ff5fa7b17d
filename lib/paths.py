"""Every place on disk, absolute from the project's root, so that the working directory never matters."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "config"  # sources: one folder per profile
DATA = ROOT / "data"  # sources: what others published, prompts, predictions
ENVS = ROOT / "envs"  # sources: locked requirements, one per environment
NOTEBOOKS = ROOT / "notebooks"  # sources: outputs stripped
REPORT_SOURCES = ROOT / "report"  # report/article.md and report/template/ are sources, the rest is generated
VENVS = ROOT / ".venvs"  # generated: one virtual environment per lock
ARTIFACTS = ROOT / "artifacts"  # generated: models at each precision, with manifests
RECORDS = ROOT / "records"  # measured: never deleted by make
BUILD = ROOT / "build"  # generated: executed notebooks
FIGURES = ROOT / "figures"  # generated: SVG and PNG
REPORT = ROOT / "report"  # generated: report/<study>/ and report/index.html


def study_name(profile: str, depth: str = "default") -> str:
    """Name of one study: the profile, and its depth where that is not the default. `cpu`, `cpu-full`."""
    return profile if depth == "default" else f"{profile}-{depth}"


def partial(study: str, launch: str) -> Path:
    """Folder of a launch in progress: journals, telemetry and logs, until they close into one record."""
    return RECORDS / study / f"{launch}.partial"


def record(study: str, launch: str) -> Path:
    """The finished record of one launch."""
    return RECORDS / study / f"{launch}.parquet"


def quality(study: str, launch: str) -> Path:
    """What one launch's weights say, scored without its server."""
    return RECORDS / study / f"{launch}.quality.json"


def tables(study: str) -> Path:
    """Folder of a study's tables and facts.json."""
    return REPORT / "tables" / study


def figures(study: str) -> Path:
    """Folder of a study's figures."""
    return FIGURES / study
