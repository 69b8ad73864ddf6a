import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.support.serializer.ErrorHandlingDeserializer;
import org.springframework.util.backoff.FixedBackOff;

/** A Spring listener. Orders with the word `twice` go through a second topic, where they fail again. */
final class Spring {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], source = arguments[1], second = arguments[2], dead = arguments[3], group = arguments[4];
        var producers = new DefaultKafkaProducerFactory<byte[], byte[]>(
                Map.of(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap),
                new ByteArraySerializer(), new ByteArraySerializer());
        var recoverer = new DeadLetterPublishingRecoverer(new KafkaTemplate<>(producers), (record, error) -> {
            boolean isTwice = record.value() instanceof byte[] order && new String(order).contains(" twice ");
            return new TopicPartition(isTwice && record.topic().equals(source) ? second : dead, -1);
        });
        var properties = new ContainerProperties(source, second);
        properties.setGroupId(group);
        properties.setMessageListener((MessageListener<byte[], byte[]>)
                record -> Orders.check("work", record.value(), record.headers()));
        var container = new KafkaMessageListenerContainer<byte[], byte[]>(consumers(bootstrap), properties);
        container.setCommonErrorHandler(new DefaultErrorHandler(recoverer, new FixedBackOff(0, 0)));
        container.start();
        Orders.waitForEndOfInput();
        Runtime.getRuntime().halt(0);
    }

    private static DefaultKafkaConsumerFactory<byte[], byte[]> consumers(String bootstrap) {
        return new DefaultKafkaConsumerFactory<>(
                Map.of(
                        ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap,
                        ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                        ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed"),
                new ByteArrayDeserializer(), new ErrorHandlingDeserializer<>(new Orders.Reader()));
    }
}
