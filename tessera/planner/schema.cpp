#include "tessera/planner/description.h"

namespace tessera::planner {

std::string schema() {
  return R"json({
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "What tessera plan reads: a described model and a described cluster",
  "anyOf": [{"$ref": "#/$defs/model"}, {"$ref": "#/$defs/cluster"}],
  "$defs": {
    "model": {
      "type": "object",
      "additionalProperties": false,
      "required": ["name", "global_batch_size", "precision", "layers"],
      "properties": {
        "name": {"type": "string"},
        "global_batch_size": {"type": "integer", "minimum": 1},
        "sequence_length": {"type": "integer", "minimum": 1},
        "hidden_size": {"type": "integer", "minimum": 1},
        "num_attention_heads": {"type": "integer", "minimum": 1},
        "vocabulary_size": {"type": "integer", "minimum": 1},
        "precision": {
          "type": "string",
          "pattern": "^(fp16|bf16|f16|fp32|f32)",
          "description": "begins with the type of parameters and activations"
        },
        "activation_checkpointing": {
          "enum": ["every layer", "none"],
          "default": "none"
        },
        "layers": {
          "type": "array",
          "minItems": 1,
          "description": "in order of execution; pipelines are cut between them",
          "items": {"$ref": "#/$defs/layer"}
        }
      }
    },
    "layer": {
      "type": "object",
      "additionalProperties": false,
      "required": [
        "name", "kind", "parameters", "output_elements_per_sample",
        "forward_seconds_per_sample"
      ],
      "properties": {
        "name": {"type": "string"},
        "kind": {
          "type": "string",
          "description": "transformer_layer: divided by tensor parallelism, with two all-reduces in its forward; lm_head: outputs are logits; others run as measured"
        },
        "parameters": {"type": "integer", "minimum": 0},
        "shares_parameters_with": {
          "type": "string",
          "description": "name of the layer whose parameters this one uses"
        },
        "output_elements_per_sample": {"type": "integer", "minimum": 0},
        "forward_seconds_per_sample": {
          "type": "object",
          "minProperties": 1,
          "description": "device name -> tensor-parallel degree -> seconds of the forward of one sample",
          "additionalProperties": {
            "type": "object",
            "required": ["1"],
            "propertyNames": {"pattern": "^[1-9][0-9]{0,5}$"},
            "additionalProperties": {"type": "number", "minimum": 0}
          }
        }
      }
    },
    "cluster": {
      "type": "object",
      "additionalProperties": false,
      "required": ["name", "devices", "nodes"],
      "properties": {
        "name": {"type": "string"},
        "devices": {
          "type": "object",
          "minProperties": 1,
          "additionalProperties": {
            "type": "object",
            "additionalProperties": false,
            "required": ["memory_gib"],
            "properties": {
              "memory_gib": {"type": "number", "exclusiveMinimum": 0},
              "memory_gb_per_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "bandwidth of the device's memory; not needed for devices the planner knows by name"
              }
            }
          }
        },
        "nodes": {
          "type": "array",
          "minItems": 1,
          "items": {
            "type": "object",
            "additionalProperties": false,
            "required": [
              "device", "count", "intra_node_gbit_per_s",
              "inter_node_gbit_per_s"
            ],
            "properties": {
              "device": {"type": "string"},
              "count": {"type": "integer", "minimum": 1},
              "intra_node_gbit_per_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "between two devices of the node"
              },
              "inter_node_gbit_per_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "of the node's network, each direction, shared by its devices"
              }
            }
          }
        }
      }
    }
  }
}
)json";
}

} // namespace tessera::planner
