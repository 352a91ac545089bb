// SPDX-License-Identifier: Apache-2.0
#include "examples/zero_pointer_wake/layers.h"

#include <gtest/gtest.h>

namespace example {
namespace {

std::vector<std::string> names_of(const std::vector<Layer>& layers) {
  std::vector<std::string> names;
  for (const Layer& layer : layers) {
    names.push_back(layer.name);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Layers, OfAnEmbeddingModel) {
  const auto layers = layers_of({"embeddings.word.weight", "embeddings.LayerNorm.bias", "encoder.layer.0.a.weight",
                                 "encoder.layer.10.a.weight", "encoder.layer.0.b.weight", "pooler.dense.bias"});
  EXPECT_EQ(names_of(layers), (Names{"embeddings", "encoder.layer.0", "encoder.layer.10", "pooler"}));
  EXPECT_EQ(layers[1].tensors, (std::vector<std::size_t>{2, 4}));
}

TEST(Layers, OfALanguageModelWithOneRoot) {
  const auto layers = layers_of({"model.embed_tokens.weight", "model.layers.0.mlp.experts.17.w", "model.norm.weight",
                                 "lm_head.weight", "model.layers.1.w", "model.scale"});
  EXPECT_EQ(names_of(layers),
            (Names{"model.embed_tokens", "model.layers.0", "model.norm", "lm_head", "model.layers.1", "model.scale"}));
}

TEST(Layers, OfOddNames) {
  EXPECT_EQ(names_of(layers_of({"weight", "", ".", "..0", "5", "x."})), (Names{"other", ".", "..0", "5", "x"}));
  EXPECT_TRUE(layers_of({}).empty());
}

TEST(Layers, AreAtMost256AndOther) {
  Names names;
  for (int i = 0; i < 1000; ++i) {
    names.push_back("layer." + std::to_string(i) + ".w");
  }
  const auto layers = layers_of(names);
  ASSERT_EQ(layers.size(), 257U);
  EXPECT_EQ(layers.back().name, "other");
  EXPECT_EQ(layers.back().tensors.size(), 744U);
}

} // namespace
} // namespace example
