"""Stand-ins for what is run before a server's first start: fetch sources, quantize, build an engine, fill templates.

Options are checked as the servers' are. What they leave says that it is a rehearsal, so that nothing made here can be
taken for weights or an engine; option names of a template are checked too.
"""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.engines.rehearse import flags, trouble
from lib.engines.rehearse.flags import Line
from lib.engines.rehearse.told import Told

MARK = "rehearsal: no weights, no engine\n"
TAKES_S = 0.1
TEMPLATE = "config.pbtxt"
TEMPLATES = "all_models/inflight_batcher_llm"  # in the backend's repository
MODELS = ("preprocessing", "postprocessing", "tensorrt_llm_bls", "ensemble", "tensorrt_llm")


def run(name: str, line: Line, told: Told) -> int:
    """Leave what the tool would leave, in name; returns its exit status."""
    time.sleep(TAKES_S / told.speed)
    return TOOLS[name](line, told)


def git(words: list[str]) -> int:
    """`git clone ... FOLDER` makes the folder with the templates that are filled later; anything else does nothing."""
    if words[:1] == ["clone"]:
        for name in MODELS:
            template = Path(words[-1]) / TEMPLATES / name / TEMPLATE
            template.parent.mkdir(parents=True, exist_ok=True)
            template.write_text("{}")
    return 0


def copy(words: list[str]) -> int:
    """`cp -r SOURCE ... FOLDER`; a source that ends in `/.` stands for what it holds."""
    *sources, folder = [word for word in words if not word.startswith("-")]
    for source in sources:
        target = Path(folder) if source.endswith("/.") else Path(folder) / Path(source).name
        shutil.copytree(source, target, dirs_exist_ok=True)
    return 0


def _checkpoint(line: Line, told: Told) -> int:
    quantized = line.one("--qformat", "") == "fp8"
    cache = line.one("--kv_cache_dtype", "")
    ranks = int(line.one("--tp_size", "1"))
    about = {
        "quantization": {"quant_algo": "FP8" if quantized else None,
                         "kv_cache_quant_algo": "FP8" if cache == "fp8" else None},
        "mapping": {"tp_size": ranks},
    }  # fmt: skip
    return _leave(Path(line.one("--output_dir", "exported_model")), about | {"version": told.version},
                  [f"rank{rank}.safetensors" for rank in range(ranks)])  # fmt: skip


def _engine(line: Line, told: Told) -> int:
    source = Path(line.one("--checkpoint_dir", "")) / "config.json"
    if not source.exists():
        trouble.say(f"FileNotFoundError: [Errno 2] No such file or directory: '{source}'")
        return 1
    pretrained = json.loads(source.read_text())
    plugins = {name: line.one(f"--{name}", "disable") == "enable" for name in
               ("use_paged_context_fmha", "use_fp8_context_fmha", "multiple_profiles", "reduce_fusion")}  # fmt: skip
    built = {
        "version": told.version,
        "pretrained_config": pretrained,
        "build_config": {
            "max_batch_size": int(line.one("--max_batch_size", "256")),
            "max_num_tokens": int(line.one("--max_num_tokens", "8192")),
            "max_seq_len": int(line.one("--max_seq_len", "8192")),
            "plugin_config": plugins,
        },
    }
    ranks = int(pretrained["mapping"]["tp_size"])
    return _leave(Path(line.one("--output_dir", "engine_outputs")), built, [f"rank{r}.engine" for r in range(ranks)])


def _template(line: Line, told: Told) -> int:
    path, values = Path(line.options["-i"][0]), line.options["-i"][1]
    given = dict(pair.split(":", 1) for pair in values.split(","))
    strange = sorted(set(given) - flags.words(told.key, f"template {path.parent.name}"))
    if strange:  # the real script would leave them unfilled, and Triton would not start
        trouble.say(f"no such value in {path.parent.name}/{path.name}: {', '.join(strange)}")
        return 1
    path.write_text(json.dumps(json.loads(path.read_text()) | given))
    return 0


def _modelopt(line: Line, told: Told) -> int:
    folder = Path(line.one("--out", "out"))
    quantized = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "version": told.version}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hf_quant_config.json").write_text(json.dumps(quantized))
    return _leave(folder, {"version": told.version}, ["model.safetensors"])


def _leave(folder: Path, about: dict[str, Any], names: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about | {"rehearsal": True}))
    for name in names:
        (folder / name).write_text(MARK)
    return 0


TOOLS: dict[str, Callable[[Line, Told], int]] = {
    "quantize.py": _checkpoint,
    "convert_checkpoint.py": _checkpoint,
    "trtllm-build": _engine,
    "fill_template.py": _template,
    "quantize_modelopt.py": _modelopt,
}
PLAIN: dict[str, Callable[[list[str]], int]] = {"git": git, "cp": copy}
